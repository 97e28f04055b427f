"""Attention and transformers over one sequence without padding, head by head, to test by."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Weights = Mapping[str, Tensor]


def batch() -> tuple[Tensor, Tensor]:
    """Sequences with padding behind, before and between their real tokens, without, and a token."""
    tokens = torch.randint(0, 11, (5, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[0, 4:] = mask[1, :2] = mask[2, 1::2] = mask[4, 1:] = False
    return tokens, mask


def cayley(free: Tensor) -> Tensor:
    """(I - A/2)^-1 (I + A/2) of the skew-symmetric A below whose diagonal `free` stands."""
    lower, one = free.tril(-1), torch.eye(len(free), dtype=free.dtype)
    half = (lower - lower.T) / 2
    return torch.linalg.inv(one - half) @ (one + half)


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def norm(x: Tensor, w: Weights, name: str) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-6)


def mlp(x: Tensor, w: Weights, name: str) -> Tensor:
    return linear(F.gelu(linear(x, w, f"{name}.fc1")), w, f"{name}.fc2")


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """f of EA eq. 62: the answers of dot-product attention to the queries (N, D)."""
    return (q @ k.T / math.sqrt(q.shape[1])).softmax(1) @ v


def consistent(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """EA eq. 62 for one head, at its queries: (N, D) three times to (D,)."""
    t = 1 / (2 * math.sqrt(q.shape[1]))
    steps = t * torch.eye(q.shape[1], dtype=q.dtype)
    changes = [attend(q + step, k, v) - attend(q - step, k, v) for step in steps]
    return torch.stack([change.abs().sum(1).mean() for change in changes]) / (2 * t)


def scaled(m: Tensor, scaling: str) -> Tensor:
    """EA remark 3, and its like with the mean."""
    if scaling == "none":
        return m
    return m / (m.max() if scaling == "max" else m.mean())


def attention(
    x: Tensor,
    w: Weights,
    name: str,
    num_heads: int,
    v_prev: Tensor | None = None,
    *,
    estimator: str = "difference",
    scaling: str = "max",
    delta: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """(N, C) to the attended (N, C) and the values (N, C); elliptical if it gets values.

    EA eq. 10 and 13; the m of "random" are the weights `table` (1, H, 1, D).
    """
    D = x.shape[1] // num_heads
    projected = linear(x, w, f"{name}.qkv").split(x.shape[1], dim=-1)
    heads = []
    for h in range(num_heads):
        part = slice(h * D, (h + 1) * D)
        q, k, v = (each[:, part] for each in projected)
        m = torch.ones(D, dtype=x.dtype)
        if v_prev is not None and estimator == "random":
            m = w[f"{name}.table"][0, h, 0]
        elif v_prev is not None:
            change = (v - v_prev[:, part]).abs().mean(0) / delta
            m = scaled(consistent(q, k, v) if estimator == "consistent" else change, scaling)
        heads.append(attend(q * m, k, v))
    return linear(torch.cat(heads, dim=-1), w, f"{name}.proj"), projected[2]


def pre_norm_block(
    x: Tensor, w: Weights, name: str, num_heads: int, v_prev: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    attended, v = attention(norm(x, w, f"{name}.norm1"), w, f"{name}.attn", num_heads, v_prev)
    x = x + attended
    return x + mlp(norm(x, w, f"{name}.norm2"), w, f"{name}.mlp"), v


def sinusoidal(places: Tensor, width: int) -> Tensor:
    """Vaswani et al. 2017, section 3.5: (N,) to (N, width)."""
    angles = places[:, None] * 10000 ** (-torch.arange(0, width, 2).double() / width)
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)


def normalized(image: Tensor, config: Any) -> Tensor:
    mean, std = (torch.tensor(x, dtype=torch.float64) for x in (config.mean, config.std))
    return (image - mean[:, None, None]) / std[:, None, None]


def patches(image: Tensor, w: Weights, config: Any) -> Tensor:
    """Tokens (N, d) of an image (C, S, S), which is normalized and cut up row by row."""
    P = config.patch_size
    cut = normalized(image, config).unfold(1, P, P).unfold(2, P, P)  # (C, rows, columns, P, P)
    found = torch.einsum("chwij,dcij->hwd", cut, w["patch_embed.proj.weight"])
    return found.flatten(0, 1) + w["patch_embed.proj.bias"]


def pool(x: Tensor, pooling: str) -> Tensor:
    if pooling == "cls":
        return x[0]
    return x.sum(0) / len(x) if pooling == "mean" else x.max(0).values

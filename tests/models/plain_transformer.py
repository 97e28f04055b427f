"""Attention and transformers over one sequence without padding, written with loops, to test by."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

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
    centered = x - x.mean(-1, keepdim=True)
    variance = (centered**2).mean(-1, keepdim=True)
    return centered / (variance + 1e-6).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def mlp(x: Tensor, w: Weights, name: str) -> Tensor:
    hidden = linear(x, w, f"{name}.fc1")
    return linear(0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2))), w, f"{name}.fc2")


def attend(query: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """f of EA eq. 62: the answer of dot-product attention to one query (D,)."""
    scores = [float(query @ key) / math.sqrt(len(query)) for key in k]
    weights = [math.exp(score - max(scores)) for score in scores]
    total = torch.zeros_like(query)
    for weight, value in zip(weights, v, strict=True):
        total += weight / sum(weights) * value
    return total


def difference(v: Tensor, v_prev: Tensor, delta: float) -> Tensor:
    """EA eq. 10 for one head: (N, D) values of two layers to (D,)."""
    N, D = v.shape
    m = torch.zeros(D, dtype=v.dtype)
    for i in range(D):
        m[i] = sum(abs(float(v[n, i] - v_prev[n, i])) / delta for n in range(N)) / N
    return m


def consistent(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """EA eq. 62 for one head, at its queries: (N, D) three times to (D,)."""
    N, D = q.shape
    m, t = torch.zeros(D, dtype=q.dtype), 1 / (2 * math.sqrt(D))
    for i in range(D):
        step = torch.zeros(D, dtype=q.dtype)
        step[i] = t
        for n in range(N):
            change = attend(q[n] + step, k, v) - attend(q[n] - step, k, v)
            m[i] += change.abs().sum() / (2 * t) / N
    return m


def scaled(m: Tensor, scaling: str) -> Tensor:
    """EA remark 3, and its like with the mean."""
    if scaling == "none":
        return m
    return m / (max(m.tolist()) if scaling == "max" else sum(m.tolist()) / len(m))


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

    EA eq. 13 with diag(m) written out; the m of "random" are the weights `table` (1, H, 1, D).
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
            change = difference(v, v_prev[:, part], delta)
            m = scaled(consistent(q, k, v) if estimator == "consistent" else change, scaling)
        heads.append(torch.stack([attend(torch.diag(m) @ query, k, v) for query in q]))
    return linear(torch.cat(heads, dim=-1), w, f"{name}.proj"), projected[2]


def pre_norm_block(
    x: Tensor, w: Weights, name: str, num_heads: int, v_prev: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    attended, v = attention(norm(x, w, f"{name}.norm1"), w, f"{name}.attn", num_heads, v_prev)
    x = x + attended
    return x + mlp(norm(x, w, f"{name}.norm2"), w, f"{name}.mlp"), v


def sinusoidal(length: int, width: int) -> Tensor:
    """Vaswani et al. 2017, section 3.5: (length, width)."""
    table = torch.zeros(length, width, dtype=torch.float64)
    for p in range(length):
        for k in range(width // 2):
            angle = p / 10000 ** (2 * k / width)
            table[p, 2 * k], table[p, 2 * k + 1] = math.sin(angle), math.cos(angle)
    return table


def normalized(image: Tensor, config: Any) -> Tensor:
    mean, std = (torch.tensor(x, dtype=torch.float64) for x in (config.mean, config.std))
    return (image - mean[:, None, None]) / std[:, None, None]


def patches(image: Tensor, w: Weights, config: Any) -> Tensor:
    """Tokens (N, d) of an image (C, S, S), which is normalized and cut up row by row."""
    P, image = config.patch_size, normalized(image, config)
    kernel, bias = w["patch_embed.proj.weight"], w["patch_embed.proj.bias"]
    starts = range(0, config.img_size, P)
    cut = [image[:, i : i + P, j : j + P] for i in starts for j in starts]
    return torch.stack([(kernel * patch).sum((1, 2, 3)) for patch in cut]) + bias


def pool(x: Tensor, pooling: str) -> Tensor:
    if pooling == "cls":
        return x[0]
    return x.sum(0) / len(x) if pooling == "mean" else x.max(0).values

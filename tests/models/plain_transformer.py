"""The layers of a transformer over one sequence without padding, written with loops, to test by."""

import math
from collections.abc import Mapping

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


def attention(
    x: Tensor, w: Weights, name: str, num_heads: int, v_prev: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(N, C) to the attended (N, C) and the values (N, C); elliptical if it gets values."""
    N, C = x.shape
    D = C // num_heads
    q, k, v = linear(x, w, f"{name}.qkv").split(C, dim=-1)
    heads = []
    for part in (slice(h * D, (h + 1) * D) for h in range(num_heads)):
        m = torch.ones(D, dtype=x.dtype)
        if v_prev is not None:
            m = sum(((v[n, part] - v_prev[n, part]).abs() for n in range(N)), torch.zeros(D)) / N
            m = m / m.max()
        rows = []
        for n in range(N):
            scores = torch.stack([(q[n, part] * m * k[j, part]).sum() for j in range(N)])
            weights = (scores / math.sqrt(D)).exp()
            rows.append((weights[:, None] * v[:, part]).sum(0) / weights.sum())
        heads.append(torch.stack(rows))
    return linear(torch.cat(heads, dim=-1), w, f"{name}.proj"), v


def pre_norm_block(
    x: Tensor, w: Weights, name: str, num_heads: int, v_prev: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    attended, v = attention(norm(x, w, f"{name}.norm1"), w, f"{name}.attn", num_heads, v_prev)
    x = x + attended
    return x + mlp(norm(x, w, f"{name}.norm2"), w, f"{name}.mlp"), v


def pool(x: Tensor, pooling: str) -> Tensor:
    if pooling == "cls":
        return x[0]
    return x.sum(0) / len(x) if pooling == "mean" else x.max(0).values

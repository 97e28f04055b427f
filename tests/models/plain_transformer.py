"""Attention and transformers over one sequence without padding, written with loops, to test by."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from models.attention.elliptical import Attention

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


def metric(layer: Attention, head: int, parts: tuple[Tensor, ...], v_prev: Tensor) -> Tensor:
    """The m (D,) of one head with its q, k and v, each (N, D)."""
    q, k, v = parts
    if layer.estimator == "random":
        assert layer.table is not None
        return layer.table[0, head, 0]
    consistently = layer.estimator == "consistent"
    m = consistent(q, k, v) if consistently else difference(v, v_prev, layer.delta)
    return scaled(m, layer.scaling)


@torch.no_grad()
def elliptical_attention(layer: Attention, x: Tensor, v_prev: Tensor | None) -> Tensor:
    """EA eq. 13 with diag(m) written out: tokens (N, C) and values (H, N, D) to (N, C)."""
    H = layer.num_heads
    D = x.shape[-1] // H
    q, k, v = (x @ layer.qkv.weight.T + layer.qkv.bias).chunk(3, dim=-1)
    out = torch.zeros_like(x)
    for h in range(H):
        part = slice(h * D, (h + 1) * D)
        parts = q[:, part], k[:, part], v[:, part]
        m = torch.ones(D, dtype=x.dtype)
        if v_prev is not None:
            m = metric(layer, h, parts, v_prev[h])
        for n, query in enumerate(parts[0]):
            out[n, part] = attend(torch.diag(m) @ query, parts[1], parts[2])
    return out @ layer.proj.weight.T + layer.proj.bias


def attention(
    x: Tensor, w: Weights, name: str, num_heads: int, v_prev: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(N, C) to the attended (N, C) and the values (N, C); elliptical if it gets values."""
    D = x.shape[1] // num_heads
    q, k, v = linear(x, w, f"{name}.qkv").split(x.shape[1], dim=-1)
    heads = []
    for part in (slice(h * D, (h + 1) * D) for h in range(num_heads)):
        m = torch.ones(D, dtype=x.dtype)
        if v_prev is not None:
            m = scaled(difference(v[:, part], v_prev[:, part], 1.0), "max")
        heads.append(
            torch.stack([attend(query * m, k[:, part], v[:, part]) for query in q[:, part]])
        )
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

"""Elliptical attention over one head or one sequence without padding, with loops, to test by."""

import math

import torch
from torch import Tensor

from models.attention.elliptical import Attention


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
def attention(layer: Attention, x: Tensor, v_prev: Tensor | None) -> Tensor:
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

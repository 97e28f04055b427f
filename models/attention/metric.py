"""Estimators of m, the diagonal of the metric of elliptical attention.

Each gives m for every sample and head on its own, from real tokens alone.

Source: Nielsen et al., "Elliptical Attention", NeurIPS 2024 (EA).
"""

import math
from typing import Literal

import torch
from torch import Tensor

Scaling = Literal["max", "mean", "none"]
Estimator = Literal["difference", "consistent", "random"]
CausalMetric = Literal["prefix", "segment"]
# Dimensions that one product of `consistent_metric` takes; its memory is N x 16 D a head.
_CHUNK = 16
# m is never of half precision, and an ONNX graph keeps the limits of a clamp in float32.
_LIMITS = torch.finfo(torch.float32)


def estimate_metric(
    v: Tensor,
    v_prev: Tensor,
    *,
    scaling: Scaling = "max",
    delta: float = 1.0,
    mask: Tensor | None = None,
) -> Tensor:
    """Estimator "difference": how much the values changed since the last layer.

    m_i = mean over real tokens of |v_i - v_prev_i| / delta, then divided by its maximum or mean
    over i. There the constants 1/N and 1/delta cancel and are never computed, which also keeps the
    exported graph small.

    Args:
        v: (B, H, N, D) values of this layer.
        v_prev: (B, H, N, D) values of the previous layer.
        scaling: how m is normalized over its D entries; "none" leaves it as it is.
        delta: size of the step between two layers, > 0; it matters only under "none".
        mask: (B, N) bool, True for real tokens; None if all are.

    Returns:
        (B, H, 1, D), non-negative and at least float32, in which half precision is summed. Under
        "max" and "mean" an all-zero m becomes 1, so that equal values mean ordinary attention, and
        entries too large for a number count as equally large.

    Source: EA eq. 10 and remark 3 ("maxscale"); the guard for an all-zero m is ours.
    """
    change = value_change(v, v_prev, mask)
    if scaling == "none":
        change = change / (_count(v, mask) * delta)
    return scale_metric(change.sum(-2, keepdim=True), scaling)  # (B, H, 1, D)


def prefix_metric(
    v: Tensor,
    v_prev: Tensor,
    *,
    scaling: Scaling = "max",
    delta: float = 1.0,
    mask: Tensor | None = None,
    before: tuple[Tensor, int] | None = None,
) -> Tensor:
    """Estimator "difference" for each token n, from the tokens up to it alone.

    m_ni = mean over real tokens j <= n of |v_ji - v_prev_ji| / delta, then scaled over i as by
    `estimate_metric`. It costs one cumulative sum.

    Args:
        v: as of `estimate_metric`, as are the next four.
        v_prev: see there.
        scaling: see there.
        delta: see there.
        mask: see there.
        before: the sum of all changes |v - v_prev| of earlier tokens, (B, H, 1, D), and their
            number.

    Returns:
        (B, H, N, D).

    Source: ours; EA takes the mean over all tokens, later ones included.
    """
    earlier, count = before or (0.0, 0)
    total = earlier + value_change(v, v_prev, mask).cumsum(-2)
    if scaling == "none":
        real = torch.ones_like(v[:, 0, :, 0], dtype=torch.bool) if mask is None else mask
        total = total / ((count + real.cumsum(1)).clamp_min(1)[:, None, :, None] * delta)
    return scale_metric(total, scaling)


def value_change(v: Tensor, v_prev: Tensor, mask: Tensor | None) -> Tensor:
    """|v - v_prev| (B, H, N, D), at least float32, zero at padding."""
    # An abs and a sum take a quarter of the time of a norm over this axis.
    change = (v - v_prev).abs_()
    if mask is not None:
        change = change.masked_fill_(~mask[:, None, :, None], 0.0)
    if change.dtype.itemsize < 4:  # float16 cannot hold the sum over some thousand tokens
        change = change.float()
    return change


def consistent_metric(
    q: Tensor, k: Tensor, v: Tensor, *, scaling: Scaling = "max", mask: Tensor | None = None
) -> Tensor:
    """Estimator "consistent": how much dot-product attention changes along each axis of the query.

    m_i = mean over real queries of ||f(q + t e_i) - f(q - t e_i)||_1 / 2t with t = 1 / (2 sqrt(D)),
    f(q) = sum_n a_n v_n and a the attention weights of q.

    A step along e_i multiplies every weight a_n by exp(u_ni), a step back by exp(-u_ni), with
    u_ni = t k_ni / sqrt(D), before they are normalized to sum 1. So each step takes one product of
    the N x N weights with [exp(u_i) * V | exp(u_i)], and nothing of size N x N x D. Everything is
    computed in float64: both steps all but cancel, which would leave few true digits of float32.

    Args:
        q: (B, H, N, D) queries.
        k: (B, H, N, D) keys.
        v: (B, H, N, D) values.
        scaling: how m is normalized over its D entries; "none" leaves it as it is.
        mask: (B, N) bool, True for real tokens; None if all are.

    Returns:
        (B, H, 1, D), non-negative. Under "max" and "mean" an all-zero m becomes 1. Keys that lie
        more than about 1400 D apart along an axis count as that far apart.

    Source: EA eq. 62, with f at the queries instead of the keys, as the authors' code has it; the
        closed form is ours.
    """
    D, dtype = q.shape[-1], q.dtype
    q, k, v = q.double(), k.double(), v.double()
    attn = attention_weights(q, k, mask)
    # Any shift of u or of the values cancels. Beyond half the logarithm of the largest number u is
    # cut off: neither exp(u) nor a sum of products with it overflows, no sum of weights vanishes.
    u, limit = k / (2 * D), math.log(torch.finfo(k.dtype).max) / 2
    u = (u - _center(u, mask)).clamp(-limit, limit)
    v = (v - _center(v, mask))[:, :, :, None]  # (B, H, N, 1, D)
    changes = []
    for part in u.split(_CHUNK, dim=-1):
        ahead, behind = (_attend(attn, weights, v) for weights in (part.exp(), (-part).exp()))
        changes.append((ahead - behind).abs().sum(-1))
    change = torch.cat(changes, dim=-1)  # (B, H, N, D)
    if mask is not None:
        change = change.masked_fill(~mask[:, None, :, None], 0.0)
    m = change.sum(-2, keepdim=True) * D**0.5 / _count(q, mask)  # 1 / 2t = sqrt(D)
    return scale_metric(m, scaling).to(dtype)


def random_metric(
    num_heads: int, head_dim: int, generator: torch.Generator, *, batch_size: int = 1
) -> Tensor:
    """Estimator "random": uniform draws from [0, 1), divided by their maximum.

    Returns:
        (B, H, 1, D) float32 on the CPU, as the generator; torch's global one stays untouched.

    Source: EA, ablation of the estimator.
    """
    shape = (batch_size, num_heads, 1, head_dim)
    # The device is named: under `torch.device("meta")` a model still gets its true table.
    draws = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu")
    return scale_metric(draws, "max")


def attention_weights(
    q: Tensor, k: Tensor, mask: Tensor | None, *, factors: Tensor | None = None
) -> Tensor:
    """Weights of dot-product attention, softmax(q k^T / sqrt(D)) over the real keys.

    (B, H, N, D) twice and (B, N) bool or None to (B, H, N, N); rows sum to 1, zero at padding.
    A mask (B, N, N) tells which keys each query sees. Scores are multiplied by the factors (H, N,
    N), if there are any.
    """
    scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
    if factors is not None:
        scores = scores * factors
    if mask is not None:
        scores = scores.masked_fill(~for_heads(mask), -torch.inf)
    return scores.softmax(-1)


def for_heads(mask: Tensor) -> Tensor:
    """A mask (B, N) of keys, or (B, Q, N) of the keys of each query, for scores (B, H, Q, N)."""
    return mask[:, None, None] if mask.dim() == 2 else mask[:, None]


def _attend(attn: Tensor, factors: Tensor, v: Tensor) -> Tensor:
    """Attend with weights (B, H, N, N) times factors (B, H, N, I), to (B, H, N, I, D)."""
    weighted = factors[..., None] * v
    attended = (attn @ weighted.flatten(3)).view(weighted.shape)
    return attended / (attn @ factors)[..., None]


def scale_metric(m: Tensor, scaling: Scaling) -> Tensor:
    """Divide m (..., D) by its maximum or mean over i; all zeros become ones, gradients finite.

    Entries too large become the largest number whose sum over i is one, too.
    """
    if scaling == "none":
        return m
    m = m.clamp(_LIMITS.tiny, _LIMITS.max / m.shape[-1])
    return m / (m.amax(-1, keepdim=True) if scaling == "max" else m.mean(-1, keepdim=True))


def _count(v: Tensor, mask: Tensor | None) -> Tensor | int:
    """Number of real tokens of each sample, to divide (B, H, 1, D) by."""
    return v.shape[2] if mask is None else mask.sum(1).view(-1, 1, 1, 1)


def _center(x: Tensor, mask: Tensor | None) -> Tensor:
    """Halfway between the least and the largest real token, along each axis, without gradient.

    Where all are equal it is their value, without any rounding.
    """
    low = high = x.detach()
    if mask is not None:
        padding = ~mask[:, None, :, None]
        low, high = low.masked_fill(padding, torch.inf), high.masked_fill(padding, -torch.inf)
    return (low.amin(-2, keepdim=True) + high.amax(-2, keepdim=True)) / 2

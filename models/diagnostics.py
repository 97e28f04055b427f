"""What a model does inside: figures per layer, and maps of what the prediction draws on.

`observe` runs a model once and keeps what every layer took and gave; `diagnose` computes the
figures from it. Padding never counts, and every figure of a sample is independent of its batch.

Sources: Nielsen et al., "Elliptical Attention", NeurIPS 2024 (EA); "Designing Injective and
Low-Entropic Transformer for Short-Long Range Encoding" (TJ); Abnar & Zuidema, "Quantifying
attention flow in transformers", ACL 2020.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from models.tokens import masked_mean


def activation_factor(x: Tensor, out: Tensor, mask: Tensor | None = None) -> Tensor:
    """How much a map f stretches the distances between the tokens of one sequence.

    The mean over pairs i < j of real tokens of ||f(x)_i - f(x)_j|| / ||x_i - x_j||. Equal tokens
    have no ratio and are left out; a sample without a pair counts as unstretched, 1.

    Args:
        x: (B, N, C) tokens that the map took.
        out: (B, N, C') tokens that it gave.
        mask: (B, N) bool, True for real tokens; None if all are.

    Returns:
        (B,), at least 0.

    Source: TJ eq. 9; reading it as a mean over the pairs of a sequence is ours.
    """
    return _mean_ratio(_distances(x, mask), _distances(out, mask))


def differential_entropy(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean over real tokens of the Vasicek estimate over each token's C activations.

    With the activations sorted, w = floor(sqrt(C) + 1/2) and indices held inside 1..C, the estimate
    is the mean over i of log(C / 2w * (x_(i + w) - x_(i - w))). It is -inf where a token has more
    than 2w equal activations, as the positions of a TransJect have before its layers move them.

    Args:
        x: (B, N, C) tokens, C at least 5.
        mask: (B, N) bool, True for real tokens; None if all are.

    Returns:
        (B,) in nats.

    Raises:
        ValueError: fewer activations than the estimate needs.

    Source: Vasicek, "A test for normality based on sample entropy", 1976; TJ eq. 10 takes the
    logarithm of negative numbers, the estimate is our reading.
    """
    C = x.shape[-1]
    window = math.floor(math.sqrt(C) + 0.5)
    if 2 * window >= C:
        raise ValueError(f"x must have at least 5 activations per token, got {C}")
    ordered = _exact(x).sort(-1).values
    index = torch.arange(C, device=x.device)
    above, below = (index + window).clamp(max=C - 1), (index - window).clamp(min=0)
    spacing = ordered[..., above] - ordered[..., below]
    entropy = (C / (2 * window) * spacing).log().mean(-1)  # (B, N)
    return masked_mean(entropy[:, :, None], mask)[:, 0]


def cosine_similarity(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean cosine of the angle between two tokens over pairs i < j: 1 means collapse.

    With unit tokens u_i it is (||sum u_i||^2 - sum ||u_i||^2) / (n (n - 1)), so that no N x N
    matrix is needed. A zero token is orthogonal to all; a single token counts as collapsed, 1.

    Args:
        x: (B, N, C) tokens.
        mask: (B, N) bool, True for real tokens; None if all are.

    Returns:
        (B,) in [-1, 1].

    Source: EA section 3.3 and appendix, "representation collapse".
    """
    unit = F.normalize(_exact(x), dim=-1)
    count = unit.new_full((len(x),), x.shape[1])
    if mask is not None:
        unit = unit.masked_fill(~mask[:, :, None], 0.0)
        count = mask.sum(1).to(unit.dtype)
    together = unit.sum(1).square().sum(-1) - unit.square().sum((1, 2))
    return torch.where(count > 1, together / (count * (count - 1)).clamp_min(1), 1.0)


def head_redundancy(attn: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean over pairs of heads h < h' of ||vec(A_h) - vec(A_h')||: small means redundant heads.

    Args:
        attn: (B, H, Q, N) attention maps.
        mask: (B, Q) bool, True for real queries; None if all are.

    Returns:
        (B,), zero for a single head. The papers' figure is its mean over layers.

    Source: EA, head redundancy in the appendix.
    """
    B, H = attn.shape[:2]
    if mask is not None:
        attn = attn.masked_fill(~mask[:, None, :, None], 0.0)
    maps = _exact(attn).flatten(2)
    # The product form of the distance cancels between similar heads.
    between = torch.cdist(maps, maps, compute_mode="donot_use_mm_for_euclid_dist")  # (B, H, H)
    return between.sum((1, 2)) / max(H * (H - 1), 1)


def rollout(maps: Sequence[Tensor], weights: Tensor | None = None) -> Tensor:
    """Follow attention from the last layer back to the tokens that entered the first.

    Per layer the heads are averaged, the identity is added for the residual path, the rows are
    normalised, and the layers are multiplied: R = A_L ... A_2 A_1 with A = (mean_h A_h + I) / 2.

    Args:
        maps: one (B, H, N, N) attention map per layer, the first layer first.
        weights: (B, Q, N) non-negative, how much each of Q readers takes from each token of the last
            layer, rows sum to 1; None for the identity. With few readers no N x N product is made.

    Returns:
        (B, Q, N) shares of the first layer's tokens; rows sum to 1.

    Source: Abnar & Zuidema 2020, section 3.
    """
    for attn in reversed(maps):
        if weights is None:
            weights = torch.eye(attn.shape[-1], dtype=attn.dtype, device=attn.device)
            weights = weights.expand(len(attn), -1, -1)
        weights = _roll(weights, attn)
    if weights is None:
        raise ValueError("maps must have at least one layer, or weights be given")
    return weights


def _roll(weights: Tensor, attn: Tensor) -> Tensor:
    """One layer of the rollout: weights (..., N) over its outputs to weights over its inputs."""
    rolled = weights + weights @ attn.mean(1)
    return rolled / rolled.sum(-1, keepdim=True)


def _exact(x: Tensor) -> Tensor:
    """At least float32: distances and sums of half-precision numbers would be noise."""
    return x if x.dtype == torch.float64 else x.float()


def _distances(x: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Per sample the distances between its real tokens, one entry per pair i < j."""
    rows = _exact(x).unbind()
    kept = rows if mask is None else [row[real] for row, real in zip(rows, mask, strict=True)]
    return [F.pdist(row) for row in kept]


def _mean_ratio(before: list[Tensor], after: list[Tensor]) -> Tensor:
    """Mean of after / before over the pairs with before > 0, one entry per sample."""
    means = []
    for old, new in zip(before, after, strict=True):
        apart = old > 0
        ratio = new[apart] / old[apart]
        means.append(ratio.mean() if len(ratio) else old.new_ones(()))
    return torch.stack(means)

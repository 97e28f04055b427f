"""Balls, and the nearest point of a hyperplane inside [0, 1].

FAB asks for that point twice in each of its steps. The reference sorts all pixels of every image
for it; together with what follows from the sorted order that took 40 % of an attack's time. The
same point is found without sorting, since it is the solution of one equation in one unknown,
piecewise linear and concave.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from robustness.attacks.base import Norm
from robustness.attacks.kernels.batch import normal, uniform

TINY = 1e-12  # keeps a length in a denominator above 0
_BLIND = 1e-8
"""Up to this size of a gradient a pixel stays where it is in l2, as in the reference FAB."""


def lengths(changes: Tensor, norm: Norm = "L2") -> Tensor:
    """Norms of changes (B, C, H, W), as (B, 1, 1, 1)."""
    if norm == "Linf":
        return changes.abs().amax((1, 2, 3), keepdim=True)
    return (changes**2).sum((1, 2, 3), keepdim=True).sqrt()


def project(points: Tensor, clean: Tensor, *, norm: Norm, eps: float) -> Tensor:
    """The points (B, C, H, W) of balls around clean images next to some points, inside [0, 1]."""
    if norm == "Linf":
        return points.clamp(clean - eps, clean + eps).clamp(0, 1)
    change = points - clean
    length = lengths(change)
    return (clean + change / (length + TINY) * length.clamp(max=eps)).clamp(0, 1)


def surface(images: Tensor, *, norm: Norm, eps: float, rng: Sequence[torch.Generator]) -> Tensor:
    """Random points on the surface of balls around images (B, C, H, W), clamped to [0, 1]."""
    if norm == "Linf":
        noise = 2 * uniform(rng, images, 0, 1) - 1
        return (images + eps * noise / lengths(noise, "Linf")).clamp(0, 1)
    noise = normal(rng, images)
    return (images + eps * noise / (lengths(noise) + TINY)).clamp(0, 1)


def nearest_linf(points: Tensor, normal: Tensor, offset: Tensor) -> Tensor:
    """Shortest way, by its largest entry, from points of the unit cube to a hyperplane.

    Every pixel moves by the same amount in the direction that its entry of the normal gives, or to
    the end of [0, 1] where that is nearer. Where the hyperplane does not meet the cube, all pixels
    go to their ends.

    Args:
        points: (B, D) in [0, 1].
        normal: (B, D), w of w x = b.
        offset: (B,), b of w x = b.

    Returns:
        What to add to the points, (B, D).

    Source: Croce & Hein 2020, "Minimally distorted adversarial examples with a fast adaptive
    boundary attack", eq. 6.
    """
    return _shortest_way(points, normal, offset, torch.ones_like(normal), least=0.0)


def nearest_l2(points: Tensor, normal: Tensor, offset: Tensor) -> Tensor:
    """Shortest way, by its Euclidean length, from points of the unit cube to a hyperplane.

    As `nearest_linf`, but every pixel moves in proportion to its entry of the normal.
    """
    return _shortest_way(points, normal, offset, normal.abs(), least=_BLIND)


def _shortest_way(
    points: Tensor, normal: Tensor, offset: Tensor, pace: Tensor, *, least: float
) -> Tensor:
    """Move pixel i by min(level * pace_i, room_i), at the level that meets the hyperplane."""
    excess = (normal * points).sum(1) - offset
    size = normal.abs()
    moving = size > least
    side = torch.where(excess >= 0, -1.0, 1.0)
    toward = normal.sign() * side[:, None]
    room = torch.where(toward < 0, points, 1 - points)
    weights = torch.where(moving, size * pace, 0.0)
    limits = torch.where(moving, room / pace, 0.0)
    level = _level(weights, limits, excess.abs())
    way = torch.minimum(level[:, None] * pace, room)
    return torch.where(moving, toward * torch.where(level.isinf()[:, None], room, way), 0.0)


def _level(weights: Tensor, limits: Tensor, needed: Tensor) -> Tensor:
    """Solve sum_i weights_i min(level, limits_i) = needed for every row; inf where it is too much.

    The left side is concave, so Newton's steps from below never pass the solution and only ever
    add to the set of entries at their limits: they end, in practice after about six.
    """
    amounts = weights * limits
    total = weights.sum(1)
    reachable = needed < amounts.sum(1)
    level = torch.where(reachable, needed / total, 0.0)
    while True:
        free = limits > level[:, None]
        slope = torch.where(free, weights, 0.0).sum(1)
        rest = needed - torch.where(free, 0.0, amounts).sum(1)
        # Rounding may leave no entry free although the equation has a solution: stay there.
        higher = torch.where(reachable & (slope > 0), torch.maximum(rest / slope, level), level)
        if torch.equal(higher, level):
            return torch.where(reachable, level, torch.inf)
        level = higher

"""FAB-T: the nearest misclassified inputs, on the decision boundary; one run serves all radii."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from robustness.attacks.base import MAX_TARGETS, Info, LinfOrL2, Norm
from robustness.attacks.minimal import MinimalAttack, Nearest
from robustness.parsing import Count

if TYPE_CHECKING:
    from torch import Tensor

    from robustness.attacks.tensors import Model

_MOST_CLEAN = 0.1  # alpha_max: largest share of the way that starts at the clean image
_OVERSHOOT = 1.05  # eta
_BACKWARD = 0.9  # beta
_SHORT = 1e-8  # a shorter way counts as that long
_BLIND = 1e-8
"""Up to this size of a gradient a pixel stays where it is in l2, as in the reference FAB."""


class FABT(MinimalAttack, frozen=True):
    """FAB towards each of the nine likeliest wrong classes.

    Each step goes to the boundary as the gradient draws it, from the iterate and from the clean
    image, a little beyond it, and to a mixture of both; a fooling iterate is drawn back towards the
    image.

    Source: Croce & Hein 2020, "Minimally distorted adversarial examples with a fast adaptive
    boundary attack", algorithm 1; targeted, without restarts.
    """

    info: ClassVar[Info] = Info(
        title="FAB-T",
        paper="Croce and Hein 2020 (FAB)",
        references=("arXiv:1907.02044",),
        what="the nearest misclassified input, along the decision boundary",
        norms=("Linf", "L2"),
        minimal=True,
    )
    name: Literal["fab-t"] = "fab-t"
    norm: LinfOrL2 = "Linf"
    steps: Count = Field(default=100, description="gradient steps, towards each class aimed at")

    def cost(self, num_classes: int) -> int:
        """Two evaluations a step towards each class aimed at."""
        return 2 * min(MAX_TARGETS, num_classes - 1) * (self.steps + 1) + 1

    def approach(
        self, model: "Model", found: Nearest, logits: "Tensor", until: float, *, leave: bool
    ) -> None:
        """See `MinimalAttack.approach`."""
        from robustness.attacks.tensors import ranked, target_ranks

        for rank in target_ranks(logits):
            rows = found.farther(until)
            if len(rows) == 0:
                break
            targets = ranked(logits, rank)
            _run(model, found, rows, targets, self.steps, until if leave else -1.0)


def _run(
    model: "Model", found: Nearest, rows: "Tensor", targets: "Tensor", steps: int, until: float
) -> None:
    """Search towards one class an image, on some rows; those as near as `until` leave."""
    import torch

    from robustness.attacks.tensors import loss_gradient

    points = found.images[rows]
    for _ in range(steps):
        own, aim = found.labels[rows, None], targets[rows, None]
        logits, lead, normals = loss_gradient(
            model, points, lambda x, own=own, aim=aim: (x.gather(1, aim) - x.gather(1, own))[:, 0]
        )
        found.note(rows, points, logits)
        on = found.distance[rows] > until
        rows, points, lead, normals = rows[on], points[on], lead[on], normals[on]
        if len(rows) == 0:
            return
        points = _step(points, found.images[rows], lead, normals, found.norm)
        with torch.no_grad():
            logits = model(points)
        fooled = found.note(rows, points, logits)
        clean = found.images[rows]
        back = clean + (points - clean) * _BACKWARD
        points = torch.where(fooled[:, None, None, None], back, points)
        on = found.distance[rows] > until
        rows, points = rows[on], points[on]
        if len(rows) == 0:
            return


def _step(
    points: "Tensor", clean: "Tensor", lead: "Tensor", normals: "Tensor", norm: Norm
) -> "Tensor":
    """The next points: past the hyperplane lead + normals (x - points) = 0, from both ends.

    Args:
        points: (B, C, H, W).
        clean: (B, C, H, W).
        lead: (B,), of the class aimed at over the label.
        normals: (B, C, H, W), the gradient of the lead.
        norm: in which ways are shortest.
    """
    from robustness.attacks.tensors import lengths

    nearest = nearest_linf if norm == "Linf" else nearest_l2
    flat, plane = points.flatten(1), normals.flatten(1)
    offset = (plane * flat).sum(1) - lead
    ways = [nearest(x.flatten(1), plane, offset).view_as(points) for x in (points, clean)]
    far, farther = (lengths(way, norm).clamp_min(_SHORT) for way in ways)
    share = (far / (far + farther)).clamp(max=_MOST_CLEAN)
    mixed = (points + _OVERSHOOT * ways[0]) * (1 - share) + (clean + ways[1] * _OVERSHOOT) * share
    return mixed.clamp(0, 1)


def nearest_linf(points: "Tensor", normal: "Tensor", offset: "Tensor") -> "Tensor":
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
    return _shortest_way(points, normal, offset, normal.new_ones(normal.shape), least=0.0)


def nearest_l2(points: "Tensor", normal: "Tensor", offset: "Tensor") -> "Tensor":
    """Shortest way, by its Euclidean length, from points of the unit cube to a hyperplane.

    As `nearest_linf`, but every pixel moves in proportion to its entry of the normal.
    """
    return _shortest_way(points, normal, offset, normal.abs(), least=_BLIND)


def _shortest_way(
    points: "Tensor", normal: "Tensor", offset: "Tensor", pace: "Tensor", *, least: float
) -> "Tensor":
    """Move pixel i by min(level * pace_i, room_i), at the level that meets the hyperplane.

    FAB asks for it twice in each of its steps. The reference sorts all pixels of every image, which
    took 40 % of an attack's time; the same point is the solution of one equation in one unknown,
    piecewise linear and concave, and is found without sorting.
    """
    import torch

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


def _level(weights: "Tensor", limits: "Tensor", needed: "Tensor") -> "Tensor":
    """Solve sum_i weights_i min(level, limits_i) = needed for every row; inf where it is too much.

    The left side is concave, so Newton's steps from below never pass the solution and only ever
    add to the set of entries at their limits: they end, in practice after about six.
    """
    import torch

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

"""FAB: the nearest misclassified inputs, found along the decision boundary; one run serves all eps.

Each step goes to the boundary as the gradient draws it, from the iterate and from the clean image,
a little beyond it, and to a mixture of both; a fooling iterate is drawn back towards the image.
"""

import torch
from torch import Tensor

from robustness.attacks.base import Norm
from robustness.attacks.kernels.batch import Model, loss_gradient, ranked, target_ranks
from robustness.attacks.kernels.projections import lengths, nearest_l2, nearest_linf

_MOST_CLEAN = 0.1  # alpha_max: largest share of the way that starts at the clean image
_OVERSHOOT = 1.05  # eta
_BACKWARD = 0.9  # beta
_SHORT = 1e-8  # a shorter way counts as that long


def fab(
    model: Model,
    images: Tensor,
    labels: Tensor,
    *,
    norm: Norm,
    steps: int,
    until: float = 0.0,
    leave: bool = True,
) -> tuple[Tensor, Tensor]:
    """Look for the nearest misclassified inputs, towards each of the likeliest wrong classes.

    Args:
        model: differentiable logits (B, K) from pixels.
        images: (N, C, H, W) float32 in [0, 1].
        labels: (N,) int64.
        norm: of the distance.
        steps: towards each of up to nine classes, of two evaluations.
        until: an image needs no nearer input than that, and leaves.
        leave: whether at once; else when the run towards the current class ends.

    Returns:
        The nearest misclassified inputs (N, C, H, W), the clean one where none was found, and their
        distances (N,): 0 where the clean image is misclassified, inf where none was found.

    Source: Croce & Hein 2020, "Minimally distorted adversarial examples with a fast adaptive
    boundary attack", algorithm 1; targeted, without restarts.
    """
    with torch.no_grad():
        logits = model(images)
    found = _Nearest(images, labels, norm)
    found.distance[logits.argmax(1) != labels] = 0.0
    for rank in target_ranks(logits):
        rows = (found.distance > until).nonzero().flatten()
        if len(rows) == 0:
            break
        targets = ranked(logits, rank)
        _run(model, found, rows, targets, steps, until if leave else -1.0)
    return found.inputs, found.distance


class _Nearest:
    """The nearest fooling inputs met so far, and how far from their images they are."""

    def __init__(self, images: Tensor, labels: Tensor, norm: Norm) -> None:
        self.images, self.labels = images, labels
        self.norm: Norm = norm
        self.inputs = images.clone()
        self.distance = torch.full_like(images[:, 0, 0, 0], torch.inf)

    def note(self, rows: Tensor, inputs: Tensor, logits: Tensor) -> Tensor:
        """Keep what fools the model and is nearer than before; says who was fooled, (B,) bool."""
        fooled = logits.argmax(1) != self.labels[rows]
        rows, inputs = rows[fooled], inputs[fooled]
        distance = lengths(inputs - self.images[rows], self.norm).flatten()
        nearer = distance < self.distance[rows]
        self.inputs[rows[nearer]], self.distance[rows[nearer]] = inputs[nearer], distance[nearer]
        return fooled


def _run(
    model: Model, found: _Nearest, rows: Tensor, targets: Tensor, steps: int, until: float
) -> None:
    """Search towards one class an image, on some rows; those as near as `until` leave."""
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


def _step(points: Tensor, clean: Tensor, lead: Tensor, normals: Tensor, norm: Norm) -> Tensor:
    """The next points: past the hyperplane lead + normals (x - points) = 0, from both ends.

    Args:
        points: (B, C, H, W).
        clean: (B, C, H, W).
        lead: (B,), of the class aimed at over the label.
        normals: (B, C, H, W), the gradient of the lead.
        norm: in which ways are shortest.
    """
    nearest = nearest_linf if norm == "Linf" else nearest_l2
    flat, plane = points.flatten(1), normals.flatten(1)
    offset = (plane * flat).sum(1) - lead
    ways = [nearest(x.flatten(1), plane, offset).view_as(points) for x in (points, clean)]
    far, farther = (lengths(way, norm).clamp_min(_SHORT) for way in ways)
    share = (far / (far + farther)).clamp(max=_MOST_CLEAN)
    mixed = (points + _OVERSHOOT * ways[0]) * (1 - share) + (clean + ways[1] * _OVERSHOOT) * share
    return mixed.clamp(0, 1)

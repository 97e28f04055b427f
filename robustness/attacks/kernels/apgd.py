"""APGD: projected gradient ascent with momentum that halves its steps where it stalls."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from robustness.attacks.base import Norm
from robustness.attacks.kernels.batch import Model, loss_gradient, ranked, target_ranks
from robustness.attacks.kernels.projections import TINY, lengths, project, surface

Loss = Literal["cross-entropy", "targeted-dlr"]
_RHO = 0.75  # up to this share of rising steps a step is halved
_MOMENTUM = 0.75  # share of the new step; the rest repeats the last one
_DLR_CLASSES = 4  # logits that the targeted loss compares


def apgd(
    model: Model,
    images: Tensor,
    labels: Tensor,
    *,
    loss: Loss,
    norm: Norm,
    eps: float,
    steps: int,
    rng: Sequence[torch.Generator],
    leave: bool = True,
) -> Tensor:
    """Climb the cross-entropy, or the DLR loss towards each of the likeliest wrong classes in turn.

    Args:
        model: differentiable logits (B, K) from pixels.
        images: (N, C, H, W) float32 in [0, 1].
        labels: (N,) int64.
        loss: which loss to climb.
        norm: of the ball.
        eps: its radius in pixel units, e.g. 8 / 255.
        steps: of one run; the targeted loss takes up to nine runs.
        rng: one generator an image, of its random starts.
        leave: stop for an image at its first fooling iterate; else finish the run.

    Returns:
        The fooling iterates (N, C, H, W), the last one where the run was finished; else the
        iterates of the largest loss; clean images where those are misclassified already.

    Raises:
        ValueError: the targeted loss is asked for and there are fewer than 4 classes.

    Source: Croce & Hein 2020, "Reliable evaluation of adversarial robustness", algorithm 1, eq. 7.
    """
    with torch.no_grad():
        logits = model(images)
    ranks = _ranks(loss, logits)
    adversarial, highest = images.clone(), torch.full_like(logits[:, 0], -torch.inf)
    right = logits.argmax(1) == labels
    for rank in ranks:
        rows = right.nonzero().flatten()
        if len(rows) == 0:
            break
        own = [rng[row] for row in rows.tolist()]
        start = surface(images[rows], norm=norm, eps=eps, rng=own)
        climb = _Climb.at(start, images[rows], labels[rows], ranked(logits[rows], rank), eps)
        fooled, found, reached = _run(model, climb, loss, norm, eps, steps, leave)
        better = fooled | (reached > highest[rows])
        adversarial[rows[better]], highest[rows[better]] = found[better], reached[better]
        right[rows[fooled]] = False
    return adversarial


@dataclass(slots=True, kw_only=True)
class _Climb:
    """Where each image that is still attacked stands; every tensor has one row an image.

    `highest`, `best` and `best_gradient` belong to the iterate of the largest loss so far.
    """

    rows: Tensor
    clean: Tensor
    labels: Tensor
    targets: Tensor
    point: Tensor
    previous: Tensor
    gradient: Tensor
    step: Tensor  # (B, 1, 1, 1)
    highest: Tensor
    best: Tensor
    best_gradient: Tensor
    last: Tensor  # loss of the last step
    rises: Tensor  # steps since the last check that raised the loss
    checked: Tensor  # `highest` at the last check
    halved: Tensor  # whether the last check halved the step

    @classmethod
    def at(
        cls, start: Tensor, clean: Tensor, labels: Tensor, targets: Tensor, eps: float
    ) -> "_Climb":
        zero = torch.zeros_like(clean[:, 0, 0, 0])
        low = torch.full_like(zero, -torch.inf)
        return cls(
            rows=torch.arange(len(clean), device=clean.device), clean=clean, labels=labels,
            targets=targets, point=start, previous=start, gradient=torch.zeros_like(clean),
            step=(zero + 2 * eps)[:, None, None, None], highest=low, best=start.clone(),
            best_gradient=torch.zeros_like(clean), last=zero, rises=zero.clone(), checked=low,
            halved=torch.ones_like(labels, dtype=torch.bool),
        )  # fmt: skip

    def keep(self, mask: Tensor) -> None:
        """Go on with some of the images."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name)[mask])

    def note(self, losses: Tensor, *, start: bool) -> None:
        """Remember the best iterates, and whether the loss rises."""
        better = losses > self.highest
        self.highest = torch.where(better, losses, self.highest)
        self.best[better], self.best_gradient[better] = self.point[better], self.gradient[better]
        if start:
            self.checked = self.highest
            return  # the first step rises if its loss is above 0, as in the reference
        self.rises = self.rises + (losses > self.last)
        self.last = losses

    def check(self, steps: int) -> None:
        """Halve the step and return to the best iterate where the last steps did not help."""
        stalled = (self.rises <= _RHO * steps) | (~self.halved & (self.checked >= self.highest))
        where = stalled[:, None, None, None]
        self.step = torch.where(where, self.step / 2, self.step)
        self.point = torch.where(where, self.best, self.point)
        self.gradient = torch.where(where, self.best_gradient, self.gradient)
        self.halved, self.checked = stalled, self.highest
        self.rises = torch.zeros_like(self.rises)


def _run(
    model: Model, climb: _Climb, loss: Loss, norm: Norm, eps: float, steps: int, leave: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Whether each image was fooled (B,), by what, else its best iterate, and its largest loss."""
    found, reached = climb.point.clone(), torch.full_like(climb.highest, -torch.inf)
    fooled = torch.zeros_like(climb.halved)
    window = check = max(int(0.22 * steps), 1)
    for step in range(steps + 1):
        if step > 0:
            share = 1.0 if step == 1 else _MOMENTUM
            climb.point, climb.previous = _move(climb, norm, eps, share), climb.point
        logits, losses, climb.gradient = loss_gradient(
            model, climb.point, lambda x: _losses(loss, x, climb.labels, climb.targets)
        )
        wrong = logits.argmax(1) != climb.labels
        found[climb.rows[wrong]], fooled[climb.rows[wrong]] = climb.point[wrong], True
        if leave and bool(wrong.any()):
            climb.keep(~wrong)
            losses = losses[~wrong]
        if len(climb.rows) == 0:
            break
        climb.note(losses, start=step == 0)
        if step == check:
            climb.check(window)
            window = max(window - max(int(0.03 * steps), 1), max(int(0.06 * steps), 1))
            check += window
    held = ~fooled[climb.rows]
    found[climb.rows[held]] = climb.best[held]
    reached[climb.rows] = climb.highest
    return fooled, found, reached


def _move(climb: _Climb, norm: Norm, eps: float, share: float) -> Tensor:
    """The next iterates: a step along the gradient, with a share of the last step added."""
    gradient, point, clean = climb.gradient, climb.point, climb.clean
    if norm == "Linf":
        stepped = point + climb.step * gradient.sign()
    else:
        stepped = point + climb.step * gradient / (lengths(gradient) + TINY)
    stepped = project(stepped, clean, norm=norm, eps=eps)
    moved = point + (stepped - point) * share + (point - climb.previous) * (1 - share)
    return project(moved, clean, norm=norm, eps=eps)


def _ranks(loss: Loss, logits: Tensor) -> Sequence[int]:
    """Ranks of the classes that runs aim at; the cross-entropy aims at none, and runs once."""
    if loss == "cross-entropy":
        return [1]
    if logits.shape[1] < _DLR_CLASSES:
        raise ValueError(
            f"attack 'apgd-t' needs a model of at least {_DLR_CLASSES} classes, "
            f"got {logits.shape[1]}"
        )
    return target_ranks(logits)


def _losses(loss: Loss, logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Losses (B,): of DLR how far the target is above the label, over the largest logits' spread.

    Source: Croce & Hein 2020, eq. 7.
    """
    if loss == "cross-entropy":
        return cross_entropy(logits, labels, reduction="none")
    ordered = logits.sort(dim=1)[0]
    spread = ordered[:, -1] - 0.5 * ordered[:, -3] - 0.5 * ordered[:, -4] + TINY
    own, aim = (logits.gather(1, index[:, None])[:, 0] for index in (labels, targets))
    return -(own - aim) / spread

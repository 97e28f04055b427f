"""APGD-CE and APGD-T: gradient steps with momentum that halve where they stall."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from robustness.attacks.base import MAX_TARGETS, Info, LinfOrL2, Norm, Search
from robustness.attacks.gradient import GradientAttack
from robustness.parsing import Count

if TYPE_CHECKING:
    from torch import Tensor

    from robustness.attacks.tensors import Model

PAPER = "Croce and Hein 2020 (AutoAttack)"
Loss = Literal["cross-entropy", "targeted-dlr"]
_RHO = 0.75  # up to this share of rising steps a step is halved
_MOMENTUM = 0.75  # share of the new step; the rest repeats the last one


class _AutoPGD(GradientAttack, frozen=True):
    """APGD up one of its two losses; an image that nothing fooled ends where its loss was largest.

    Source: Croce & Hein 2020, "Reliable evaluation of adversarial robustness", algorithm 1, eq. 7.
    """

    loss: ClassVar[Loss]
    norm: LinfOrL2 = "Linf"
    steps: Count = Field(default=100, description="gradient steps, towards each class aimed at")

    def perturb(
        self, model: "Model", images: "Tensor", labels: "Tensor", eps: float, search: Search
    ) -> "Tensor":
        """See `GradientAttack.perturb`."""
        import torch

        from robustness.attacks.tensors import ranked, surface, target_ranks

        with torch.no_grad():
            logits = model(images)
        adversarial, highest = images.clone(), torch.full_like(logits[:, 0], -torch.inf)
        right, rng = logits.argmax(1) == labels, search.generators()
        # The cross-entropy aims at no class, and runs once.
        for rank in [1] if self.loss == "cross-entropy" else target_ranks(logits):
            rows = right.nonzero().flatten()
            if len(rows) == 0:
                break
            own = [rng[row] for row in rows.tolist()]
            start = surface(images[rows], norm=self.norm, eps=eps, rng=own)
            climb = _Climb.at(start, images[rows], labels[rows], ranked(logits[rows], rank), eps)
            fooled, found, reached = _run(
                model, climb, self.loss, self.norm, eps, self.steps, search.leave
            )
            better = fooled | (reached > highest[rows])
            adversarial[rows[better]], highest[rows[better]] = found[better], reached[better]
            right[rows[fooled]] = False
        return adversarial


class APGDCE(_AutoPGD, frozen=True):
    """APGD up the cross-entropy."""

    info: ClassVar[Info] = Info(
        title="APGD-CE",
        paper=PAPER,
        references=("arXiv:2003.01690",),
        what="PGD that chooses its own step sizes",
        norms=("Linf", "L2"),
        follows="cross-entropy",
    )
    loss: ClassVar[Loss] = "cross-entropy"
    name: Literal["apgd-ce"] = "apgd-ce"

    def cost(self, num_classes: int) -> int:
        """One gradient a step, two more for the start."""
        return self.steps + 2


class APGDT(_AutoPGD, frozen=True):
    """APGD towards each of the nine likeliest wrong classes."""

    info: ClassVar[Info] = Info(
        title="APGD-T",
        paper=PAPER,
        references=("arXiv:2003.01690",),
        what="the same towards each of the likeliest wrong classes",
        norms=("Linf", "L2"),
        min_classes=4,
    )
    loss: ClassVar[Loss] = "targeted-dlr"
    name: Literal["apgd-t"] = "apgd-t"

    def cost(self, num_classes: int) -> int:
        """APGD once for each class aimed at."""
        return min(MAX_TARGETS, num_classes - 1) * (self.steps + 2) + 1


@dataclass(slots=True, kw_only=True)
class _Climb:
    """Where each image that is still attacked stands; every tensor has one row an image.

    `highest`, `best` and `best_gradient` belong to the iterate of the largest loss so far.
    """

    rows: "Tensor"
    clean: "Tensor"
    labels: "Tensor"
    targets: "Tensor"
    point: "Tensor"
    previous: "Tensor"
    gradient: "Tensor"
    step: "Tensor"  # (B, 1, 1, 1)
    highest: "Tensor"
    best: "Tensor"
    best_gradient: "Tensor"
    last: "Tensor"  # loss of the last step
    rises: "Tensor"  # steps since the last check that raised the loss
    checked: "Tensor"  # `highest` at the last check
    halved: "Tensor"  # whether the last check halved the step

    @classmethod
    def at(
        cls, start: "Tensor", clean: "Tensor", labels: "Tensor", targets: "Tensor", eps: float
    ) -> "_Climb":
        """Where the images (B, C, H, W) stand before their first step; steps begin at 2 eps."""
        import torch

        zero = torch.zeros_like(clean[:, 0, 0, 0])
        low = torch.full_like(zero, -torch.inf)
        return cls(
            rows=torch.arange(len(clean), device=clean.device), clean=clean, labels=labels,
            targets=targets, point=start, previous=start, gradient=torch.zeros_like(clean),
            step=(zero + 2 * eps)[:, None, None, None], highest=low, best=start.clone(),
            best_gradient=torch.zeros_like(clean), last=zero, rises=zero.clone(), checked=low,
            halved=torch.ones_like(labels, dtype=torch.bool),
        )  # fmt: skip

    def keep(self, mask: "Tensor") -> None:
        """Go on with some of the images."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name)[mask])

    def note(self, losses: "Tensor", *, start: bool) -> None:
        """Remember the best iterates, and whether the loss rises."""
        better = losses > self.highest
        self.highest = losses.where(better, self.highest)
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
        self.step = (self.step / 2).where(where, self.step)
        self.point = self.best.where(where, self.point)
        self.gradient = self.best_gradient.where(where, self.gradient)
        self.halved, self.checked = stalled, self.highest
        self.rises = self.rises.new_zeros(self.rises.shape)


def _run(
    model: "Model", climb: _Climb, loss: Loss, norm: Norm, eps: float, steps: int, leave: bool
) -> "tuple[Tensor, Tensor, Tensor]":
    """Whether each image was fooled (B,), by what, else its best iterate, and its largest loss."""
    import torch

    from robustness.attacks.tensors import loss_gradient

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


def _move(climb: _Climb, norm: Norm, eps: float, share: float) -> "Tensor":
    """The next iterates: a step along the gradient, with a share of the last step added."""
    from robustness.attacks.tensors import TINY, lengths, project

    gradient, point, clean = climb.gradient, climb.point, climb.clean
    if norm == "Linf":
        stepped = point + climb.step * gradient.sign()
    else:
        stepped = point + climb.step * gradient / (lengths(gradient) + TINY)
    stepped = project(stepped, clean, norm=norm, eps=eps)
    moved = point + (stepped - point) * share + (point - climb.previous) * (1 - share)
    return project(moved, clean, norm=norm, eps=eps)


def _losses(loss: Loss, logits: "Tensor", labels: "Tensor", targets: "Tensor") -> "Tensor":
    """Losses (B,): of DLR how far the target is above the label, over the largest logits' spread.

    Source: Croce & Hein 2020, eq. 7.
    """
    from torch.nn.functional import cross_entropy

    from robustness.attacks.tensors import TINY

    if loss == "cross-entropy":
        return cross_entropy(logits, labels, reduction="none")
    ordered = logits.sort(dim=1)[0]
    spread = ordered[:, -1] - 0.5 * ordered[:, -3] - 0.5 * ordered[:, -4] + TINY
    own, aim = (logits.gather(1, index[:, None])[:, 0] for index in (labels, targets))
    return -(own - aim) / spread

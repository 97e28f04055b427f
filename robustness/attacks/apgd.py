"""APGD-CE and APGD-T: gradient steps with momentum that halve where they stall."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from robustness.attacks.base import MAX_TARGETS, Info, LinfL2OrL1, Norm, Search
from robustness.attacks.gradient import GradientAttack
from robustness.parsing import Count

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from robustness.attacks.tensors import Model

PAPER = "Croce and Hein 2020 (AutoAttack)"
Loss = Literal["cross-entropy", "targeted-dlr"]
_RHO = 0.75  # up to this share of rising steps a step is halved
_MOMENTUM = 0.75  # share of the new step; the rest repeats the last one
_SPARSER = 0.95  # l1: up to this share of the entries changed before, a step is long again
_DENSITY = 1.5  # l1: a step moves one entry for so many that differ from the clean image
_SHORTER = 1.5  # l1: by which a step shrinks
_SHORTEST = 0.1  # l1: of the longest step


class _AutoPGD(GradientAttack, frozen=True):
    """APGD up one of its two losses; an image that nothing fooled ends where its loss was largest.

    For l1 it climbs in balls of 3 eps, of 2 eps and then of eps, each from the best iterate of the
    one before, along the largest entries of the gradient; a success counts in the last ball alone.

    Source: Croce & Hein 2020, "Reliable evaluation of adversarial robustness", algorithm 1, eq. 7;
    for l1 Croce & Hein 2021, "Mind the box", sections 3 and 4.
    """

    loss: ClassVar[Loss]
    targets: ClassVar[int] = MAX_TARGETS
    norm: LinfL2OrL1 = "Linf"
    steps: Count = Field(default=100, description="gradient steps, towards each class aimed at")

    def perturb(
        self, model: "Model", images: "Tensor", labels: "Tensor", eps: float, search: Search
    ) -> "Tensor":
        """See `GradientAttack.perturb`."""
        import torch

        from robustness.attacks.tensors import ranked, target_ranks

        with torch.no_grad():
            logits = model(images)
        adversarial, highest = images.clone(), torch.full_like(logits[:, 0], -torch.inf)
        right, rng = logits.argmax(1) == labels, search.generators()
        # The cross-entropy aims at no class, and runs once.
        for rank in [1] if self.loss == "cross-entropy" else target_ranks(logits, self.targets):
            rows = right.nonzero().flatten()
            if len(rows) == 0:
                break
            own = [rng[row] for row in rows.tolist()]
            part = images[rows], labels[rows], ranked(logits[rows], rank)
            fooled, found, reached = self._climb(model, *part, eps, own, leave=search.leave)
            better = fooled | (reached > highest[rows])
            adversarial[rows[better]], highest[rows[better]] = found[better], reached[better]
            right[rows[fooled]] = False
        return adversarial

    def _climb(
        self,
        model: "Model",
        images: "Tensor",
        labels: "Tensor",
        targets: "Tensor",
        eps: float,
        rng: "Sequence[Generator]",
        *,
        leave: bool,
    ) -> "tuple[Tensor, Tensor, Tensor]":
        """One climb from a random start; see `_run`."""
        from robustness.attacks.tensors import project, surface

        *wider, last = self._stages
        kind = _SparseClimb if self.norm == "L1" else _Climb
        start = surface(images, norm=self.norm, eps=[*wider, last][0][0] * eps, rng=rng)
        for times, steps in wider:
            radius = times * eps
            climb = kind.at(start, images, labels, targets, radius)
            _run(model, climb, self.loss, self.norm, radius, steps, leave=False)
            start = project(climb.best, images, norm=self.norm, eps=(times - 1) * eps)
        climb = kind.at(start, images, labels, targets, eps)
        return _run(model, climb, self.loss, self.norm, eps, last[1], leave=leave)

    @property
    def _stages(self) -> list[tuple[int, int]]:
        """Radii in units of eps, and the steps taken within each; the last radius is eps."""
        wider = self.steps * 3 // 10 if self.norm == "L1" else 0
        whole = [(3, wider), (2, wider)] if wider else []
        return [*whole, (1, self.steps - 2 * wider)]

    @property
    def _each(self) -> int:
        """Gradients of one climb, and one evaluation more."""
        return self.steps + len(self._stages) + 1


class APGDCE(_AutoPGD, frozen=True):
    """APGD up the cross-entropy."""

    info: ClassVar[Info] = Info(
        title="APGD-CE",
        paper=PAPER,
        references=("arXiv:2003.01690",),
        what="PGD that chooses its own step sizes",
        norms=("Linf", "L2", "L1"),
        follows="cross-entropy",
    )
    loss: ClassVar[Loss] = "cross-entropy"
    name: Literal["apgd-ce"] = "apgd-ce"

    def cost(self, num_classes: int) -> int:
        """One gradient a step, two more for the start; for l1 two more for larger balls."""
        return self._each


class APGDT(_AutoPGD, frozen=True):
    """APGD towards each of the nine likeliest wrong classes."""

    info: ClassVar[Info] = Info(
        title="APGD-T",
        paper=PAPER,
        references=("arXiv:2003.01690",),
        what="the same towards each of the likeliest wrong classes",
        norms=("Linf", "L2", "L1"),
        min_classes=4,
    )
    loss: ClassVar[Loss] = "targeted-dlr"
    name: Literal["apgd-t"] = "apgd-t"

    def cost(self, num_classes: int) -> int:
        """APGD once for each class aimed at."""
        return min(self.targets, num_classes - 1) * self._each + 1


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
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name)[mask])

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

    def window(self, before: int, steps: int) -> int:
        """Steps until the next check, of so many in all; `before` was the last one, or 0."""
        if not before:
            return max(int(0.22 * steps), 1)
        return max(before - max(int(0.03 * steps), 1), max(int(0.06 * steps), 1))

    def moved(self, norm: Norm, eps: float, share: float) -> "Tensor":
        """The next iterates: a step along the gradient, with a share of the last step added."""
        from robustness.attacks.tensors import TINY, lengths, project

        gradient, point, clean = self.gradient, self.point, self.clean
        if norm == "Linf":
            stepped = point + self.step * gradient.sign()
        else:
            stepped = point + self.step * gradient / (lengths(gradient) + TINY)
        stepped = project(stepped, clean, norm=norm, eps=eps)
        moved = point + (stepped - point) * share + (point - self.previous) * (1 - share)
        return project(moved, clean, norm=norm, eps=eps)


@dataclass(slots=True, kw_only=True)
class _SparseClimb(_Climb):
    """A climb in an l1 ball: it moves few entries at once, fewer where its best iterate has few.

    Source: Croce & Hein 2021, "Mind the box", section 4 (adaptive sparsity, single eps).
    """

    longest: "Tensor" = field(init=False)  # step (B, 1, 1, 1)
    changed: "Tensor" = field(init=False)  # entries of the best iterate at the last check, (B,)

    def __post_init__(self) -> None:
        self.step = self.longest = self.step / 2
        self.changed = self._changed()

    def check(self, steps: int) -> None:
        """Take long steps from the best iterate where it became sparser, else shorter ones."""
        changed = self._changed()
        sparser = changed < _SPARSER * self.changed
        where = sparser[:, None, None, None]
        shorter = (self.step / _SHORTER).maximum(self.longest * _SHORTEST)
        self.step = self.longest.where(where, shorter)
        self.point = self.best.where(where, self.point)
        self.gradient = self.best_gradient.where(where, self.gradient)
        self.changed = changed

    def window(self, before: int, steps: int) -> int:
        """See `_Climb.window`."""
        return max(int(0.04 * steps), 1)

    def moved(self, norm: Norm, eps: float, share: float) -> "Tensor":
        """The next iterates: the same step in each of the gradient's largest entries."""
        from robustness.attacks.tensors import TINY, project

        size = self.gradient.abs().flatten(1)
        entries = size.shape[1]
        rank = (entries - self.changed / _DENSITY).long().clamp(0, entries - 1)
        least = size.sort(1)[0].gather(1, rank[:, None])[..., None, None]
        signs = self.gradient.sign() * (self.gradient.abs() >= least)
        count = signs.abs().sum((1, 2, 3), keepdim=True)
        return project(
            self.point + self.step * signs / (count + TINY), self.clean, norm=norm, eps=eps
        )

    def _changed(self) -> "Tensor":
        return (self.best != self.clean).flatten(1).sum(1)


def _run(
    model: "Model", climb: _Climb, loss: Loss, norm: Norm, eps: float, steps: int, leave: bool
) -> "tuple[Tensor, Tensor, Tensor]":
    """Whether each image was fooled (B,), by what, else its best iterate, and its largest loss."""
    import torch

    from robustness.attacks.tensors import loss_gradient

    found, reached = climb.point.clone(), torch.full_like(climb.highest, -torch.inf)
    fooled = torch.zeros_like(climb.halved)
    window = check = climb.window(0, steps)
    for step in range(steps + 1):
        if step > 0:
            share = 1.0 if step == 1 else _MOMENTUM
            climb.point, climb.previous = climb.moved(norm, eps, share), climb.point
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
            window = climb.window(window, steps)
            check += window
    held = ~fooled[climb.rows]
    found[climb.rows[held]] = climb.best[held]
    reached[climb.rows] = climb.highest
    return fooled, found, reached


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

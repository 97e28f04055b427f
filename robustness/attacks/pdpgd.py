"""PDPGD: the change shrinks, and the weight of being fooled rises while the model is not."""

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from robustness.attacks.base import Info, LinfOrL1, Norm
from robustness.attacks.minimal import DUALS, MinimalWalk, Nearest

if TYPE_CHECKING:
    from torch import Tensor

    from robustness.attacks.tensors import Model

_LONGEST: dict[Norm, float] = {"Linf": 0.1, "L1": 0.5}  # first step of Adam, at most
_FALL = 0.01  # the last one, as a share of the first
# First step of the weight's logarithm, times the number of steps.
_DUAL: dict[Norm, float] = {"Linf": 50.0, "L1": 20.0}
_DUAL_FALL = 0.1  # the last one, as a share of the first
_WEIGHT = math.log(100)  # of being fooled over being near, at first
_MOST_WEIGHT = math.log(1e6)
_MEMORY = 0.9  # of the average of both weights
_PROXIMAL = 5  # steps to the nearest point in Adam's metric
_HALVINGS = 8  # of the way from the clean image to the nearest one found


class PDPGD(MinimalWalk, frozen=True):
    """PDPGD: descent by Adam on being fooled, and a proximal step on the norm of the change.

    Differences to the paper: the first step is not longer than a linear model is from its boundary,
    and for l1, where few entries move far, five times the paper's, as if about 100 steps were its
    500; the weights move as far in any number of steps as in 500 of the paper, for l1 two fifths of
    it; the result is brought to the boundary by halving its way from the clean image.

    Source: Matyasko & Chau 2021, "PDPGD: primal-dual proximal gradient descent adversarial
    attack", algorithm 1, with the proximal Adam of Melchior et al. 2019.
    """

    info: ClassVar[Info] = Info(
        title="PDPGD",
        paper="Matyasko and Chau 2021 (PDPGD)",
        references=("arXiv:2106.01538",),
        what="the nearest misclassified input, by descent on the norm and on being fooled at once",
        norms=("Linf", "L1"),
        minimal=True,
    )
    name: Literal["pdpgd"] = "pdpgd"
    norm: LinfOrL1 = "Linf"

    def cost(self, num_classes: int) -> int:
        """One gradient a step, the clean image, and the way back to the boundary."""
        return super().cost(num_classes) + _HALVINGS

    def approach(
        self, model: "Model", found: Nearest, logits: "Tensor", until: float, *, leave: bool
    ) -> None:
        """See `MinimalAttack.approach`; at the end towards the clean images, by halving."""
        import torch

        super().approach(model, found, logits, until, leave=leave)
        rows = found.farther(until)
        rows = rows[found.distance[rows].isfinite()]
        clean, far = found.images[rows], found.inputs[rows]
        share, width = torch.ones_like(clean[:, :1, :1, :1]), 1.0
        for _ in range(_HALVINGS if len(rows) else 0):
            width /= 2
            points = clean + (far - clean) * (share - width)
            with torch.no_grad():
                logits = model(points)
            fooled = found.note(rows, points, logits)[:, None, None, None]
            share = torch.where(fooled, share - width, share)

    def walk(
        self,
        model: "Model",
        found: Nearest,
        rows: "Tensor",
        targets: "Tensor | None",
        steps: int,
    ) -> None:
        """See `MinimalWalk.walk`."""
        import torch

        from robustness.attacks.minimal import Adam
        from robustness.attacks.tensors import TINY, lengths

        clean = found.images[rows]
        points, adam = clean, Adam(clean)
        weight = torch.full_like(clean[:, :1, :1, :1], _WEIGHT)
        near, fooling = _balance(weight)
        longest = torch.full_like(weight, _LONGEST[self.norm])
        dual = _DUAL[self.norm] / steps
        for step in range(steps):
            _, lead, gradient = found.ask(model, rows, points, targets)
            lead = lead[:, None, None, None]
            way, metric = adam.step(-torch.sigmoid(-lead) * gradient)  # of softplus(-lead)
            if step == 0:
                straight = lead.abs() / (lengths(gradient, DUALS[self.norm]) + TINY)
                longest = longest.minimum(straight)
            pace = longest * _FALL ** (step / steps)
            change = (points - pace * way).clamp(0, 1) - clean
            shrink = near / fooling * pace / metric.amax((1, 2, 3), keepdim=True)
            points = clean + self._proximal(clean, change, metric, shrink)
            left = 1 - step / max(steps - 1, 1)
            weight = weight - lead.sign() * dual * (_DUAL_FALL + (1 - _DUAL_FALL) * left)
            weight = weight.clamp(-_MOST_WEIGHT, _MOST_WEIGHT)
            near, fooling = (
                _MEMORY * old + (1 - _MEMORY) * new
                for old, new in zip((near, fooling), _balance(weight), strict=True)
            )

    def _proximal(
        self, clean: "Tensor", change: "Tensor", metric: "Tensor", shrink: "Tensor"
    ) -> "Tensor":
        """What is left of a change (B, C, H, W) after a step on its norm, in Adam's metric."""
        share, made = metric / metric.amax((1, 2, 3), keepdim=True), change
        for _ in range(_PROXIMAL):
            made = self._less(made - share * (made - change), shrink)
            made = (clean + made).clamp(0, 1) - clean
        return made

    def _less(self, change: "Tensor", shrink: "Tensor") -> "Tensor":
        """The proximal operator of the norm."""
        from robustness.attacks.tensors import shrunk

        if self.norm == "Linf":
            return change - shrunk(change, shrink)
        return change.sign() * (change.abs() - shrink).clamp(min=0)


def _balance(weight: "Tensor") -> "tuple[Tensor, Tensor]":
    """Weights of being near and of being fooled; they add up to 1."""
    import torch

    return torch.sigmoid(-weight), torch.sigmoid(weight)

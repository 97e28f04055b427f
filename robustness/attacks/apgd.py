"""APGD-CE and APGD-T: gradient steps with momentum that halve where they stall."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from robustness.attacks.base import MAX_TARGETS, Budget, Info, Settings
from robustness.attacks.gradient import GradientAttack
from robustness.parsing import Count

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from robustness.attacks.kernels.apgd import Loss
    from robustness.attacks.kernels.batch import Model

PAPER = "Croce and Hein 2020 (AutoAttack)"


class _AutoPGD(GradientAttack, frozen=True):
    """APGD up one of its two losses."""

    loss: ClassVar["Loss"]
    norm: Literal["Linf", "L2"] = Field(default="Linf", description="norm of the radii")
    steps: Count = Field(default=100, description="gradient steps, towards each class aimed at")

    def settings(self, budget: Budget) -> Settings:
        """See `Attack.settings`."""
        del budget
        return Settings(self.steps)

    def perturb(
        self,
        model: "Model",
        images: "Tensor",
        labels: "Tensor",
        *,
        eps: float,
        rng: "Sequence[torch.Generator]",
        leave: bool = True,
    ) -> "Tensor":
        """See `GradientAttack.perturb`."""
        from robustness.attacks.kernels.apgd import apgd

        return apgd(
            model, images, labels, loss=self.loss, norm=self.norm, eps=eps, steps=self.steps,
            rng=rng, leave=leave,
        )  # fmt: skip


class APGDCE(_AutoPGD, frozen=True):
    """APGD up the cross-entropy."""

    info: ClassVar[Info] = Info(
        title="APGD-CE",
        paper=PAPER,
        what="PGD that chooses its own step sizes",
        norms=("Linf", "L2"),
        follows="cross-entropy",
    )
    loss: ClassVar["Loss"] = "cross-entropy"
    name: Literal["apgd-ce"] = "apgd-ce"

    def cost(self, num_classes: int) -> int:
        """One gradient a step, two more for the start."""
        del num_classes
        return self.steps + 2


class APGDT(_AutoPGD, frozen=True):
    """APGD towards each of the nine likeliest wrong classes."""

    info: ClassVar[Info] = Info(
        title="APGD-T",
        paper=PAPER,
        what="the same towards each of the likeliest wrong classes",
        norms=("Linf", "L2"),
        min_classes=4,
    )
    loss: ClassVar["Loss"] = "targeted-dlr"
    name: Literal["apgd-t"] = "apgd-t"

    def cost(self, num_classes: int) -> int:
        """APGD once for each class aimed at."""
        return min(MAX_TARGETS, num_classes - 1) * (self.steps + 2) + 1

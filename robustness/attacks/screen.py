"""Screen: the cheap half of AutoAttack, and a search that masked scores do not mislead."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from robustness.attacks.apgd import APGDCE, APGDT, PAPER
from robustness.attacks.base import Attack, BallAttack, Budget, Info, LinfOrL2, Settings
from robustness.attacks.boundary import Boundary


class _Likeliest(APGDT, frozen=True):
    """APGD towards the likeliest wrong classes alone."""

    targets: ClassVar[int] = 3


class Screen(BallAttack, frozen=True):
    """APGD-CE, APGD towards the three likeliest classes, and a search along the boundary.

    Each works on what the ones before left. The loss of the second is the same whatever logits are
    multiplied by; the third asks for classes, and for gradients only where the class changes.
    """

    info: ClassVar[Info] = Info(
        title="Screen",
        paper=f"after {PAPER}, Brendel et al. 2019",
        references=("arXiv:2003.01690", *Boundary.info.references),
        what="the steps of AutoAttack that find most, and a search that masked scores do not "
        "mislead",
        norms=("Linf", "L2"),
    )
    name: Literal["screen"] = "screen"
    norm: LinfOrL2 = "Linf"

    def parts(self, num_classes: int) -> list[Attack]:
        """The three; APGD-T, whose loss compares four logits, is left out with fewer classes."""
        return [
            kind(norm=self.norm, eps=self.eps)
            for kind in (APGDCE, _Likeliest, Boundary)
            if num_classes >= kind.info.min_classes
        ]

    def cost(self, num_classes: int) -> int:
        """The sum of its parts."""
        return sum(part.cost(num_classes) for part in self.parts(num_classes))

    def settings(self, budget: Budget) -> Settings:
        """Steps of its gradient attacks."""
        return Settings(100)

    def notes(self, num_classes: int) -> Iterator[str]:
        """What it leaves out."""
        yield (
            "Screen leaves out of AutoAttack the targets beyond the three likeliest, FAB-T and "
            "Square, and gives up images whose class changes far outside of the ball; AutoAttack "
            "is the figure to quote."
        )
        if num_classes < APGDT.info.min_classes:
            yield (
                f"With {num_classes} classes Screen runs without APGD-T, whose loss compares four "
                "logits."
            )

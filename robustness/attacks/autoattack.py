"""AutoAttack: four attacks in sequence, each on the inputs that the ones before left."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from robustness.attacks.apgd import APGDCE, APGDT, PAPER
from robustness.attacks.base import Attack, BallAttack, Budget, Info, LinfOrL2, Settings
from robustness.attacks.fab import FABT
from robustness.attacks.space import Spaced
from robustness.attacks.square import Square


class _BoundedFABT(FABT, frozen=True):
    """FAB-T up to the radius asked for: in a sequence it works on what is left there."""

    def searched(self, budget: Budget) -> Budget:
        """The radius itself."""
        return budget


class _SpacedAPGDCE(Spaced, APGDCE, frozen=True):
    """APGD-CE in any space."""

    name: Literal["apgd-ce"] = "apgd-ce"


class _SpacedAPGDT(Spaced, APGDT, frozen=True):
    """APGD-T in any space."""

    name: Literal["apgd-t"] = "apgd-t"


class _SpacedFABT(Spaced, _BoundedFABT, frozen=True):
    """FAB-T of a sequence in any space."""

    name: Literal["fab-t"] = "fab-t"


class _SpacedSquare(Spaced, Square, frozen=True):
    """Square in any space."""

    name: Literal["square"] = "square"


class AutoAttack(Spaced, BallAttack, frozen=True):
    """APGD-CE, APGD-T, FAB-T and Square, as published."""

    info: ClassVar[Info] = Info(
        title="AutoAttack",
        paper=PAPER,
        references=("arXiv:2003.01690",),
        what="four strong attacks in sequence; takes long where the model holds",
        norms=("Linf", "L2"),
    )
    name: Literal["autoattack"] = "autoattack"
    norm: LinfOrL2 = "Linf"

    def parts(self, num_classes: int) -> list[Attack]:
        """The four; APGD-T, whose loss compares four logits, is left out with fewer classes."""
        if self.replication:
            kinds = (_SpacedAPGDCE, _SpacedAPGDT, _SpacedFABT, _SpacedSquare)
            own = {"norm": self.norm, "eps": self.eps, "space": self.space}
        else:
            kinds = (APGDCE, APGDT, _BoundedFABT, Square)
            own = {"norm": self.norm, "eps": self.eps}
        return [kind(**own) for kind in kinds if num_classes >= kind.info.min_classes]

    def cost(self, num_classes: int) -> int:
        """The sum of its parts."""
        return sum(part.cost(num_classes) for part in self.parts(num_classes))

    def settings(self, budget: Budget) -> Settings:
        """Steps of its gradient attacks."""
        return Settings(100)

    def notes(self, num_classes: int) -> Iterator[str]:
        """What it leaves out."""
        yield from super().notes(num_classes)
        if num_classes < APGDT.info.min_classes:
            yield (
                f"With {num_classes} classes AutoAttack runs without APGD-T, whose loss compares "
                "four logits."
            )

"""Bounds for images: what no changed pixels, and no replaced patches, can do.

Proved is the model itself, and not a smoothed one: an image counts as proved if no change of the
set, as float32 computes it, gives another class a logit as large as the label's. The bounds are not
exact: an image may be open though nothing misleads the model.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from robustness.attacks.base import (
    TOLERANCE,
    BallAttack,
    Budget,
    Info,
    LinfOrL2,
    distinct,
)
from robustness.certificates.base import Proof, Worst
from robustness.parsing import Counts

if TYPE_CHECKING:
    from torch import Tensor, nn

    from models.analysis.patches import Bound, Patches
    from robustness.target import Target


class PatchProof(Proof, frozen=True):
    """A proof for models that read each patch by itself."""

    methods: ClassVar[tuple[str, ...]] = ("the Lipschitz factor", "linear relaxation")

    def refused(self, model: "nn.Module") -> str | None:
        """See `Proof.refused`."""
        from models.analysis.patches import refusal

        return refusal(model)

    def notes(self, num_classes: int) -> Iterator[str]:
        """What the proof is about, and what makes it possible."""
        yield (
            f"{self.title} are about pixels in [0, 1]. They are bounds and not exact: an input may "
            "be open though nothing misleads the model. The model sees the place of each patch, "
            "but no interaction between patches."
        )

    def bound(self, known: "Patches", image: "Tensor", label: int, budget: Budget) -> "Bound":
        """What a budget leaves of the margin of an image (C, H, W)."""
        raise NotImplementedError

    def most(self, target: "Target", budget: Budget) -> int:
        """See `Proof.most`."""
        return _known(target).places

    def finder(
        self, target: "Target", budget: Budget, before: Callable[[], object]
    ) -> Callable[[np.ndarray, int], Worst]:
        """See `Proof.finder`."""
        import torch

        known = _known(target)

        def find(image: np.ndarray, label: int) -> Worst:
            """The bound of one image."""
            found = self.bound(known, torch.from_numpy(image), label, budget)
            return Worst(
                margin=found.margin, rounding=found.rounding, places=found.places,
                method=found.method,
            )  # fmt: skip

        return find


class PixelBounds(PatchProof, BallAttack, frozen=True):
    """What no change of pixels within a ball does, beyond it by what attacks are forgiven."""

    info: ClassVar[Info] = Info(
        title="Pixel bounds",
        paper="Zhang et al. 2018",
        references=("arXiv:1811.00866",),
        what="no attack but a proof, against any change of pixels within eps",
        access="weights",
        norms=("Linf", "L2"),
        role="proof",
    )
    name: Literal["pixel-bounds"] = "pixel-bounds"
    norm: LinfOrL2 = "Linf"

    def bound(self, known: "Patches", image: "Tensor", label: int, budget: Budget) -> "Bound":
        """See `PatchProof.bound`."""
        ask = known.box if self.norm == "Linf" else known.ball
        return ask(image, label, budget.value + TOLERANCE)


class PatchBounds(PatchProof, frozen=True):
    """What no other contents of some patches, as the model cuts the image, do."""

    info: ClassVar[Info] = Info(
        title="Patch bounds",
        paper="Zhang et al. 2018",
        references=("arXiv:1811.00866",),
        what="no attack but a proof, against any contents of some patches of the model",
        access="weights",
        budget="patches",
        role="proof",
    )
    name: Literal["patch-bounds"] = "patch-bounds"
    patches: Counts = Field(default=[1, 2], description="patches of the model that are replaced")

    @field_validator("patches")
    @classmethod
    def _distinct_patches(cls, patches: list[int]) -> list[int]:
        return distinct("patches", patches)

    def bound(self, known: "Patches", image: "Tensor", label: int, budget: Budget) -> "Bound":
        """See `PatchProof.bound`."""
        [found] = known.aligned(image, label, [int(budget.value)])
        return found


class SquareBounds(PatchProof, frozen=True):
    """What no other contents of one square, wherever it lies, do."""

    info: ClassVar[Info] = Info(
        title="Square bounds",
        paper="Zhang et al. 2018",
        references=("arXiv:1811.00866",),
        what="no attack but a proof, against any contents of one square of pixels anywhere",
        access="weights",
        budget="patch",
        role="proof",
    )
    name: Literal["square-bounds"] = "square-bounds"
    patch: Counts = Field(default=[2], description="sides of the square patch, in pixels")

    @field_validator("patch")
    @classmethod
    def _distinct_sides(cls, patch: list[int]) -> list[int]:
        return distinct("patch", patch)

    def cost(self, num_classes: int) -> int:
        """Bounds of one image: of each part of a patch of 4 x 4 pixels that a square covers."""
        return 1 + (max(self.patch) + 3) ** 2

    def describe(self, budget: Budget) -> str:
        """See `Attack.describe`."""
        return f"with one patch of {budget.text}x{budget.text} pixels"

    def bound(self, known: "Patches", image: "Tensor", label: int, budget: Budget) -> "Bound":
        """See `PatchProof.bound`."""
        return known.square(image, label, int(budget.value))


def _known(target: "Target") -> "Patches":
    from models.analysis.patches import Patches

    model = target.require_torch_model()
    return target.known(Patches, model, lambda: Patches(model))

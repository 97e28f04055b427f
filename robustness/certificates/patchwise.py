"""Bounds for images: what no changed pixels, and no replaced patches, can do.

Proved is the model itself, and not a smoothed one: an image counts as proved if no change of the
set, as float32 computes it, gives another class a logit as large as the label's. The bounds are not
exact: an image may be open though nothing misleads the model.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np
from pydantic import Field, field_validator

from robustness.attacks.base import (
    TOLERANCE,
    BallAttack,
    Batch,
    Budget,
    Info,
    LinfOrL2,
    Proof,
    Search,
    check_images,
    distinct,
)
from robustness.parsing import Counts

if TYPE_CHECKING:
    from torch import Tensor, nn

    from models.analysis.patches import Bound, Patches
    from robustness.target import Target

_KNOWN: "WeakKeyDictionary[object, tuple[str, Patches]]" = WeakKeyDictionary()
"""By PyTorch model: the digest of its target, and what is known of its patches."""


class PatchProof(Proof, frozen=True):
    """A proof for models that read each patch by itself."""

    methods: ClassVar[tuple[str, ...]] = ("the Lipschitz factor", "linear relaxation")

    def refused(self, model: "nn.Module") -> str | None:
        """See `Proof.refused`."""
        from models.analysis.patches import refusal

        return refusal(model)

    def cost(self, num_classes: int) -> int:
        """Bounds of one image."""
        return 1

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

    def prove(
        self, target: "Target", batch: Batch, budget: Budget, search: Search
    ) -> dict[str, np.ndarray]:
        """See `Proof.prove`."""
        import torch

        self.check(target)
        check_images(batch, range(len(batch.inputs)))
        known = _known(target)
        found: list[Bound] = []
        for image, label in zip(batch.images, batch.labels, strict=True):
            if search.meter is not None:
                search.meter.before()
            found.append(self.bound(known, torch.from_numpy(image), int(label), budget))
            if search.meter is not None:
                search.meter.after(1)
        places = np.full((known.places, len(found)), -1, np.int64)
        for i, one in enumerate(found):
            places[: len(one.places), i] = one.places
        return {
            "margin": np.array([one.margin for one in found], np.float64),
            "rounding": np.array([one.rounding for one in found], np.float64),
            "places": places,
            "pieces": np.full_like(places, -1),
            "method": np.array([one.method for one in found], np.int64),
        }


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
    digest, found = _KNOWN.get(model, ("", None))
    if found is None or digest != target.digest:
        found = Patches(model)
        _KNOWN[model] = target.digest, found
    return found

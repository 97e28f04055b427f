"""What proves instead of attacking: certificates of a smoothed model, and proofs of the model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from robustness.attacks.base import Attack, Batch, Budget, Search, check_images
from robustness.kinds import NotPossible

if TYPE_CHECKING:
    from torch import nn

    from robustness.target import Target


class Certificate(Attack, frozen=True):
    """What proves a radius for each image, in place of attacking it."""

    def certify(
        self, target: "Target", batch: Batch, budget: Budget, search: Search
    ) -> tuple[np.ndarray, np.ndarray]:
        """The classes (B,) that are proved, -1 where none is, and radii (B,)."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """The worst that the changes of a proof can do to one input.

    Attributes:
        margin: what is left of the margin, or a lower bound of it; 0 where it is not known.
        rounding: how much less it can be in float32.
        places: which tokens or patches are replaced.
        pieces: by which, as far as that is told.
        method: position in the proof's `methods`.
    """

    margin: float
    rounding: float
    places: Sequence[int] = ()
    pieces: Sequence[int] = ()
    method: int = 0


class Proof(Attack, frozen=True):
    """What proves of each input that no change within a budget changes its label.

    `methods` are those by which it does, as parts of a sentence.
    """

    methods: ClassVar[tuple[str, ...]] = ("exact",)

    @property
    def scorings(self) -> int:
        """A proof is not scored."""
        return 0

    def check(self, target: "Target") -> None:
        """Refuse a model that it knows nothing about.

        Raises:
            NotPossible: with the reason.
        """
        about = f"attacks: {self.label!r} proves nothing of {target.name!r}"
        if target.torch_model is None:
            raise NotPossible(f"{about}, whose weights nobody can see here")
        if target.endpoint is not None:
            raise NotPossible(f"{about}: behind an address may lie another model than its copy")
        if getattr(target, "relabel", None) is not None:
            raise NotPossible(f"{about}, whose labels change with the text")
        if target.runtime.precision != "fp32":
            raise NotPossible(
                f"{about}: rounding is bounded for fp32, and it is served in "
                f"{target.runtime.precision}"
            )
        why = self.refused(target.torch_model)
        if why is not None:
            raise NotPossible(f"{about}: {why}")

    def refused(self, model: "nn.Module") -> str | None:
        """Why it knows nothing about a model, in one sentence; None where it does."""
        raise NotImplementedError

    def cost(self, num_classes: int) -> int:
        """One forward pass; what is found of the weights is found once, whatever the inputs."""
        return 1

    def most(self, target: "Target", budget: Budget) -> int:
        """How many places a worst case tells of at most."""
        return 0

    def finder(
        self, target: "Target", budget: Budget, before: Callable[[], object]
    ) -> Callable[[Any, int], Worst]:
        """What finds the worst case of an input with its label; long work calls `before` often."""
        raise NotImplementedError

    def prove(
        self, target: "Target", batch: Batch, budget: Budget, search: Search
    ) -> dict[str, np.ndarray]:
        """What `robustness.results.ProofResult` holds of a batch.

        Raises:
            NotPossible: see `check`.
        """
        self.check(target)
        if self.info.input == "image":
            check_images(batch, range(len(batch.inputs)))
        before = (lambda: None) if search.meter is None else search.meter.before
        find, found = self.finder(target, budget, before), list[Worst]()
        for one, label in zip(batch.inputs, batch.labels.tolist(), strict=True):
            before()
            found.append(find(one, label))
            if search.meter is not None:
                search.meter.after(1)
        most = self.most(target, budget)
        return {
            "margin": np.array([one.margin for one in found], np.float64),
            "rounding": np.array([one.rounding for one in found], np.float64),
            "places": _columns([one.places for one in found], most),
            "pieces": _columns([one.pieces for one in found], most),
            "method": np.array([one.method for one in found], np.int64),
        }


def _columns(lists: Sequence[Sequence[int]], most: int) -> np.ndarray:
    """Lists as columns (most, N) int64, filled up with -1."""
    table = np.full((most, len(lists)), -1, np.int64)
    for column, values in enumerate(lists):
        table[: len(values), column] = values
    return table

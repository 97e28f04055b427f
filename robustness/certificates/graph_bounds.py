"""Graph bounds: what no change of pixels does, by bounds sent through the served graph.

They hold of any image classifier of operators that there are bounds for. Each operator makes them
longer, so that little is proved of deep networks, and of transformers hardly anything: products,
softmax and normalization of bounds that are long already give no bound at all.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, cast
from weakref import WeakKeyDictionary

import numpy as np

from robustness.attacks.base import (
    TOLERANCE,
    BallAttack,
    Batch,
    Budget,
    Info,
    Linf,
    Proof,
    Search,
    check_images,
)
from robustness.kinds import NotPossible

if TYPE_CHECKING:
    from torch import Tensor

    from robustness.certificates.propagation import Propagation
    from robustness.target import ImageTarget, Target

_KNOWN: "WeakKeyDictionary[object, Propagation]" = WeakKeyDictionary()
"""By runtime: its graph."""


class GraphBounds(Proof, BallAttack, frozen=True):
    """What no change of pixels within a ball does, beyond it by what attacks are forgiven."""

    info: ClassVar[Info] = Info(
        title="Graph bounds",
        paper="Gowal et al. 2018, Singh et al. 2018",
        references=("arXiv:1810.12715",),
        what="no attack but a proof for small networks, against any change within eps; of "
        "transformers it proves nothing",
        access="graph",
        norms=("Linf",),
        role="proof",
    )
    methods: ClassVar[tuple[str, ...]] = ("intervals", "affine arithmetic")
    name: Literal["graph-bounds"] = "graph-bounds"
    norm: Linf = "Linf"

    def cost(self, num_classes: int) -> int:
        """Intervals are two images; affine arithmetic is like one for each pixel of a small one."""
        return 1000

    def notes(self, num_classes: int) -> Iterator[str]:
        """How little open inputs mean."""
        yield (
            "Graph bounds are not exact: each operator makes them longer. An input may be open "
            "though nothing misleads the model, and of deep models and transformers most are."
        )

    def check(self, target: "Target") -> None:
        """See `Proof.check`."""
        about = f"attacks: {self.label!r} proves nothing of {target.name!r}"
        if getattr(target, "graph", None) is None:
            raise NotPossible(f"{about}, whose graph nobody can see here")
        if target.runtime.precision != "fp32":
            raise NotPossible(
                f"{about}: rounding is bounded for fp32, and it is served in "
                f"{target.runtime.precision}"
            )
        why = _known(target).refusal
        if why is not None:
            raise NotPossible(f"{about}: {why}")

    def prove(
        self, target: "Target", batch: Batch, budget: Budget, search: Search
    ) -> dict[str, np.ndarray]:
        """See `Proof.prove`; affine arithmetic where intervals prove nothing."""
        import torch

        self.check(target)
        check_images(batch, range(len(batch.inputs)))
        known, radius = _known(target), budget.value + TOLERANCE
        found = []
        for image, label in zip(batch.images, batch.labels, strict=True):
            if search.meter is not None:
                search.meter.before()
            exact = torch.from_numpy(image.astype(np.float64))[None]
            box = (exact - radius).clamp(min=0), (exact + radius).clamp(max=1)
            found.append(_bound(known, *box, int(label)))
            if search.meter is not None:
                search.meter.after(1)
        none = np.zeros((0, len(found)), np.int64)
        margin, rounding, method = zip(*found, strict=True) if found else ([], [], [])
        return {
            "margin": np.array(margin, np.float64),
            "rounding": np.array(rounding, np.float64),
            "places": none,
            "pieces": none,
            "method": np.array(method, np.int64),
        }


def _bound(
    known: "Propagation", low: "Tensor", high: "Tensor", label: int
) -> tuple[float, float, int]:
    """Margin, rounding and method of one image: the second one where the first proves nothing."""
    left, lost = known.margin(low, high, label, slopes=False)
    if left > lost:
        return left, lost, 0
    return *known.margin(low, high, label, slopes=True), 1


def _known(target: "Target") -> "Propagation":
    from export.verifiable import unrolled
    from robustness.certificates.propagation import Propagation

    known = _KNOWN.get(target.runtime)
    if known is None:
        known = Propagation(unrolled(cast("ImageTarget", target).require_graph()))
        _KNOWN[target.runtime] = known
    return known

"""Graph bounds: what no change of pixels does, by bounds sent through the served graph.

They hold of any image classifier of operators that there are bounds for. Each operator makes them
longer, so that little is proved of deep networks, and of transformers hardly anything: products,
softmax and normalization of bounds that are long already give no bound at all.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import numpy as np

from robustness.attacks.base import (
    TOLERANCE,
    BallAttack,
    Budget,
    Info,
    Linf,
)
from robustness.certificates.base import Proof, Worst
from robustness.kinds import NotPossible

if TYPE_CHECKING:
    from robustness.certificates.propagation import Propagation
    from robustness.target import ImageTarget, Target


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

    def finder(
        self, target: "Target", budget: Budget, before: Callable[[], object]
    ) -> Callable[[np.ndarray, int], Worst]:
        """See `Proof.finder`."""
        import torch

        known, radius = _known(target), budget.value + TOLERANCE

        def find(image: np.ndarray, label: int) -> Worst:
            """The bounds of one image; affine arithmetic where intervals prove nothing."""
            exact = torch.from_numpy(image.astype(np.float64))[None]
            box = (exact - radius).clamp(min=0), (exact + radius).clamp(max=1)
            margin, rounding = known.margin(*box, label, slopes=False)
            if margin > rounding:
                return Worst(margin=margin, rounding=rounding)
            margin, rounding = known.margin(*box, label, slopes=True)
            return Worst(margin=margin, rounding=rounding, method=1)

        return find


def _known(target: "Target") -> "Propagation":
    from export.verifiable import unrolled
    from robustness.certificates.propagation import Propagation

    def unroll() -> Propagation:
        """Prepare the graph."""
        return Propagation(unrolled(cast("ImageTarget", target).require_graph()))

    return target.known(Propagation, target.runtime, unroll)

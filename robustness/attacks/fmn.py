"""DDN and FMN: steps along the gradient, and a radius that shrinks while the model is fooled."""

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from robustness.attacks.base import L2, Info, LinfOrL1
from robustness.attacks.minimal import DUALS, MinimalWalk, Nearest, shares

if TYPE_CHECKING:
    from torch import Tensor

    from robustness.attacks.tensors import Model


_L1_STEP = 2.0  # times as long, because the projection shortens every entry


class _Pace(NamedTuple):
    """How a walk begins; both fall along a cosine.

    Attributes:
        step: its length, in radii.
        swing: by which share the radius shrinks or grows in a step.
    """

    step: float
    swing: float


_LAST = _Pace(step=0.01, swing=0.001)


class _RadiusWalk(MinimalWalk, frozen=True):
    """Walks on balls: the radius shrinks where the model is fooled, and grows where it is not.

    Until it is fooled for the first time, the radius is a little more than a linear model needs.

    Differences to both papers: half of the steps look towards the three likeliest wrong classes,
    the others go on from the nearest input found; the gradient is that of the lead of one logit
    over another; the length of a step is a share of the radius.
    """

    aims: ClassVar[int] = 3
    explore: ClassVar[_Pace] = _Pace(step=1.0, swing=0.25)
    polish: ClassVar[_Pace] = _Pace(step=0.5, swing=0.1)

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

        from robustness.attacks.tensors import TINY, lengths

        pace = self.polish if targets is None else self.explore
        clean = found.images[rows]
        points = found.inputs[rows] if targets is None else clean
        radius = lengths(points - clean, self.norm)
        hit = (points != clean).flatten(1).any(1)[:, None, None, None]
        for step, swing in zip(
            shares(steps, pace.step, _LAST.step),
            shares(steps, pace.swing, _LAST.swing),
            strict=True,
        ):
            fooled, lead, gradient = found.ask(model, rows, points, targets)
            fooled, lead = fooled[:, None, None, None], lead[:, None, None, None]
            hit, nearest = hit | fooled, found.distance[rows, None, None, None]
            boundary = lead.abs() / (lengths(gradient, DUALS[self.norm]) + TINY)
            straight = lengths(points - clean, self.norm) + boundary
            wider = torch.where(hit, radius, straight) * (1 + swing)
            radius = torch.where(fooled, (radius * (1 - swing)).minimum(nearest), wider)
            stepped = points + step * radius * self.direction(gradient)
            points = self.onto(stepped, clean, radius)

    def direction(self, gradient: "Tensor") -> "Tensor":
        """Of a step, one radius long (B, C, H, W)."""
        raise NotImplementedError

    def onto(self, points: "Tensor", clean: "Tensor", radius: "Tensor") -> "Tensor":
        """Points (B, C, H, W) brought to balls around clean images, and inside [0, 1]."""
        raise NotImplementedError


class DDN(_RadiusWalk, frozen=True):
    """DDN: a change always has the length of the radius, so that gradients only turn it.

    Source: Rony et al. 2019, "Decoupling direction and norm for efficient gradient-based l2
    adversarial attacks and defenses", algorithm 1, without rounding to 8 bit; see `_RadiusWalk`.
    """

    info: ClassVar[Info] = Info(
        title="DDN",
        paper="Rony et al. 2019 (DDN)",
        references=("arXiv:1811.09600",),
        what="the nearest misclassified input in l2, on spheres that shrink and grow",
        norms=("L2",),
        minimal=True,
    )
    name: Literal["ddn"] = "ddn"
    norm: L2 = "L2"

    def direction(self, gradient: "Tensor") -> "Tensor":
        """See `_RadiusWalk.direction`."""
        from robustness.attacks.tensors import TINY, lengths

        return gradient / (lengths(gradient) + TINY)

    def onto(self, points: "Tensor", clean: "Tensor", radius: "Tensor") -> "Tensor":
        """See `_RadiusWalk.onto`; on the sphere, but for the walls of [0, 1]."""
        from robustness.attacks.tensors import TINY, lengths

        change = points - clean
        return (clean + change * (radius / (lengths(change) + TINY))).clamp(0, 1)


class FMN(_RadiusWalk, frozen=True):
    """FMN: a change may lie anywhere in the ball.

    In l∞ a step goes along the signs of the gradient.

    Source: Pintor et al. 2021, "Fast minimum-norm adversarial attacks through adaptive norm
    constraints", algorithm 1; see `_RadiusWalk`.
    """

    info: ClassVar[Info] = Info(
        title="FMN",
        paper="Pintor et al. 2021 (FMN)",
        references=("arXiv:2102.12827",),
        what="the nearest misclassified input, in balls that shrink and grow",
        norms=("Linf", "L1"),
        minimal=True,
    )
    name: Literal["fmn"] = "fmn"
    norm: LinfOrL1 = "Linf"

    def direction(self, gradient: "Tensor") -> "Tensor":
        """See `_RadiusWalk.direction`."""
        from robustness.attacks.tensors import TINY, lengths

        if self.norm == "Linf":
            return gradient.sign()
        return _L1_STEP * gradient / (lengths(gradient, "L1") + TINY)

    def onto(self, points: "Tensor", clean: "Tensor", radius: "Tensor") -> "Tensor":
        """See `_RadiusWalk.onto`."""
        from robustness.attacks.tensors import project

        return project(points, clean, norm=self.norm, eps=radius)

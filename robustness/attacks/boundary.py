"""Boundary: turns a direction by the gradient where the class changes along it."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from robustness.attacks.base import Info, LinfOrL2, Norm, Search
from robustness.attacks.gradient import GradientAttack
from robustness.parsing import Count

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from robustness.attacks.tensors import Model

_STARTS = 4  # first directions
_GROWTH, _RINGS = 1.5, 12  # radii at which a first direction is looked along: eps, 1.5 eps, ...
_HALVINGS = 10  # of the interval in which the class changes
_TURNS = 6  # steps before the next start, at random
_FAR, _LOOK = 1.5, 3  # farther than so many radii after so many starts an image is given up


class Boundary(GradientAttack, frozen=True):
    """Looks for the nearest change of class along a direction, also beyond the ball.

    A gradient is taken only where the class changes. Inside a class scores may be flat, steep or
    misleading: of them nothing is asked. It is that of both classes' logits on both sides, added
    up, since a model may mislead on each side in another way. Each step mixes the direction with
    the vertex of the ball that the gradient points to (Frank-Wolfe); it counts if the class changes
    nearer than before.

    Source: adapted from Brendel et al. 2019, "Accurate, reliable and fast robustness evaluation"
    (gradients on the boundary), and Chen & Gu 2020, "RayS", algorithm 1 (a direction that is no
    better costs one evaluation).
    """

    info: ClassVar[Info] = Info(
        title="Boundary",
        paper="after Brendel et al. 2019, Chen and Gu 2020",
        references=("arXiv:1907.01003", "arXiv:2006.12792"),
        what="turns a direction by the gradient where the class changes along it",
        norms=("Linf", "L2"),
    )
    name: Literal["boundary"] = "boundary"
    norm: LinfOrL2 = "Linf"
    steps: Count = Field(default=144, description="directions tried after the first ones")

    def cost(self, num_classes: int) -> int:
        """What is asked along each direction, and a gradient for it."""
        starts = -(-self.steps // _TURNS)
        return 2 + (_STARTS + starts) * (_RINGS + _HALVINGS + 2) + self.steps * (4 + _HALVINGS)

    def perturb(
        self, model: "Model", images: "Tensor", labels: "Tensor", eps: float, search: Search
    ) -> "Tensor":
        """See `GradientAttack.perturb`."""
        import torch

        with torch.no_grad():
            rows = (model(images).argmax(1) == labels).nonzero().flatten()
        made = images.clone()
        if len(rows):
            lines = _Lines(model, images[rows], labels[rows], self.norm, eps)
            every = search.generators()
            rng = [every[row] for row in rows.tolist()]
            lines.start(_directions(lines, rng))
            best, radius = lines.direction.clone(), lines.radius.clone()
            for step in range(self.steps):
                if step % _TURNS == 0 and step > 0:
                    far = _FAR * eps if step >= _LOOK * _TURNS else torch.inf
                    lines.restart(_blocks(lines.clean, rng), (radius > eps) & (radius <= far))
                lines.turn()
                nearer = lines.radius < radius
                best[nearer], radius[nearer] = lines.direction[nearer], lines.radius[nearer]
            made[rows] = lines.points(best, torch.full_like(radius, eps))
        return made


def _directions(lines: "_Lines", rng: "list[Generator]") -> "list[Tensor]":
    """The gradient's, away from grey, stripes and blocks at random: each (B, C, H, W)."""
    from robustness.attacks.tensors import normal

    stripes = normal(rng, lines.clean)[..., :1, :].sign().expand_as(lines.clean)
    grey = (0.5 - lines.clean).sign()
    return [lines.vertex(lines.gradient(lines.clean)[0]), grey, stripes, _blocks(lines.clean, rng)]


def _blocks(clean: "Tensor", rng: "list[Generator]") -> "Tensor":
    """Signs at random, (B, C, H, W), equal within each of about 7 x 7 blocks."""
    from torch.nn.functional import interpolate

    from robustness.attacks.tensors import normal

    drawn = normal(rng, clean)[..., :7, :7].sign()
    return interpolate(drawn, size=clean.shape[-2:], mode="nearest")


class _Lines:
    """Where the class changes nearest along a direction from each image.

    Attributes:
        clean: (B, C, H, W).
        direction: (B, C, H, W) of norm 1, the best so far.
        radius: (B,) at which the class changes along it; infinite where it does not, and at most
            eps where the image is fooled.
    """

    def __init__(
        self, model: "Model", clean: "Tensor", labels: "Tensor", norm: Norm, eps: float
    ) -> None:
        import torch

        self._model, self._labels, self._eps = model, labels, eps
        self._norm: Norm = norm
        self.clean, self.direction = clean, torch.zeros_like(clean)
        self.radius = torch.full_like(clean[:, 0, 0, 0], torch.inf)
        self._vertex, self._mix = torch.zeros_like(clean), torch.ones_like(self.radius)

    def points(
        self, direction: "Tensor", radius: "Tensor", rows: "Tensor | slice" = slice(None)
    ) -> "Tensor":
        """Images (n, C, H, W) at some radii (n,) along directions from some of the clean ones."""
        moved = self.clean[rows] + radius[:, None, None, None] * direction
        return moved.clamp(0, 1)

    def gradient(
        self,
        points: "Tensor",
        other: "Tensor | None" = None,
        rows: "Tensor | slice" = slice(None),
    ) -> "tuple[Tensor, Tensor]":
        """How another logit gains on the label's.

        Args:
            points: (n, C, H, W).
            other: (n,) the classes; without them the likeliest but the label.
            rows: of the images.

        Returns:
            The gradient (n, C, H, W), and the likeliest classes but the label (n,).
        """
        from robustness.attacks.tensors import loss_gradient

        labels = self._labels[rows][:, None]

        def rest(logits: "Tensor") -> "Tensor":
            """Without the label's, (B, K)."""
            return logits.scatter(1, labels, -float("inf"))

        def lead(logits: "Tensor") -> "Tensor":
            """Of the other logit, (B,)."""
            wrong = rest(logits)
            gaining = wrong.amax(1) if other is None else wrong.gather(1, other[:, None])[:, 0]
            return gaining - logits.gather(1, labels)[:, 0]

        logits, _, gradient = loss_gradient(self._model, points, lead)
        return gradient, rest(logits).argmax(1)

    def start(self, directions: "list[Tensor]") -> None:
        """Begin with the direction along which the class changes nearest."""
        for candidate in directions:
            self._look(candidate, (self.radius > self._eps).nonzero().flatten())
        rows = self._open().nonzero().flatten()
        self._settle(rows, self.radius[rows] / _GROWTH)

    def restart(self, drawn: "Tensor", chosen: "Tensor") -> None:
        """Go on from other directions (B, C, H, W), for the chosen images (B,) alone."""
        import torch

        rows = chosen.nonzero().flatten()
        self.radius[:] = torch.inf
        self._mix[rows] = 1
        self._look(drawn, rows)
        rows = rows[self._open()[rows]]
        self._settle(rows, self.radius[rows] / _GROWTH)

    def _open(self) -> "Tensor":
        """Which images hold, and change class somewhere along their direction, (B,) bool."""
        return (self.radius > self._eps) & self.radius.isfinite()

    def _look(self, candidate: "Tensor", waiting: "Tensor") -> None:
        """Where a direction changes the class nearer, at one of the rings, take it."""
        import torch

        direction, radius = self._unit(candidate), self._eps
        for _ in range(_RINGS):
            waiting = waiting[radius < self.radius[waiting]]
            if len(waiting) == 0:
                break
            at = torch.full_like(self.radius[waiting], radius)
            wrong = self._wrong(direction[waiting], at, waiting)
            hit = waiting[wrong]
            self.radius[hit], self.direction[hit] = radius, direction[hit]
            waiting, radius = waiting[~wrong], radius * _GROWTH

    def turn(self) -> None:
        """Try another direction for each image that holds."""
        rows = self._open().nonzero().flatten()
        if len(rows) == 0:
            return
        share = self._mix[rows][:, None, None, None]
        turned = self._unit((1 - share) * self.direction[rows] + share * self._vertex[rows])
        better = self._wrong(turned, self.radius[rows] * 0.999, rows)
        self._mix[rows] = (self._mix[rows] * better.float().mul(2).add(0.5)).clamp(max=1)
        rows = rows[better]
        self.direction[rows], self.radius[rows] = turned[better], self.radius[rows] * 0.999
        inside = self._wrong(turned[better], self.radius[rows].clamp(max=self._eps), rows)
        self.radius[rows[inside]] = self._eps
        rows = rows[~inside]
        self._settle(rows, self.radius[rows].clamp(max=self._eps))

    def _settle(self, rows: "Tensor", low: "Tensor") -> None:
        """Find the radius at which the class changes, above `low` (n,), and the gradients there."""
        if len(rows) == 0:
            return
        direction, high = self.direction[rows], self.radius[rows]
        for _ in range(_HALVINGS):
            half = (low + high) / 2
            wrong = self._wrong(direction, half, rows)
            low, high = low.where(wrong, half), half.where(wrong, high)
        self.radius[rows] = high
        outside, other = self.gradient(self.points(direction, high, rows), rows=rows)
        inside, _ = self.gradient(self.points(direction, low, rows), other, rows)
        self._vertex[rows] = self.vertex(outside + inside)

    def _wrong(self, direction: "Tensor", radius: "Tensor", rows: "Tensor") -> "Tensor":
        import torch

        if len(rows) == 0:
            return torch.zeros_like(radius, dtype=torch.bool)
        with torch.no_grad():
            logits = self._model(self.points(direction, radius, rows))
        return logits.argmax(1) != self._labels[rows]

    def vertex(self, gradient: "Tensor") -> "Tensor":
        """The point of the ball that lies farthest along a gradient (n, C, H, W)."""
        return gradient.sign() if self._norm == "Linf" else self._unit(gradient)

    def _unit(self, direction: "Tensor") -> "Tensor":
        from robustness.attacks.tensors import TINY, lengths

        return direction / lengths(direction, self._norm).clamp(min=TINY)

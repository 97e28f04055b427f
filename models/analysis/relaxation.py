"""Linear relaxation: nonlinear functions between two lines, over the range of their argument.

Source: Zhang et al. 2018 (CROWN), theorem 3.2, for ELU and for clipping.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Where the pixels of n patches may lie: in a box, and in a ball around what they are.

    Attributes:
        low: (n, P) least pixels.
        high: (n, P) largest ones.
        clean: (n, P) unchanged ones.
        radius: l2 radius of the ball; infinite without one.
    """

    low: Tensor
    high: Tensor
    clean: Tensor
    radius: float = math.inf

    @property
    def reach(self) -> Tensor:
        """How far a patch can be moved, (n,), l2."""
        return (
            torch.maximum(self.high - self.clean, self.clean - self.low)
            .norm(dim=1)
            .clamp(max=self.radius)
        )

    def falls(self, slopes: Tensor) -> Tensor:
        """How far slopes (n, R, P) times pixels can fall below their unchanged value, (n, R)."""
        most = self._most(slopes).sum(-1)
        return most if math.isinf(self.radius) else most.minimum(self.radius * self.norms(slopes))

    def norms(self, slopes: Tensor) -> Tensor:
        """The l2 norms (n, R) of slopes, without pixels at a border that they push outwards."""
        return slopes.where(self._most(slopes) > 0, 0).norm(dim=-1)

    def _most(self, slopes: Tensor) -> Tensor:
        up, down = (self.clean - self.low)[:, None], (self.high - self.clean)[:, None]
        return torch.where(slopes > 0, slopes * up, -slopes * down)


def around(patches: Tensor, radius: float, *, ball: bool = False) -> Region:
    """Patches (n, P), pixels in [0, 1], moved by the radius at most: each pixel, or in l2."""
    low, high = (patches - radius).clamp(0, 1), (patches + radius).clamp(0, 1)
    return Region(low=low, high=high, clean=patches, radius=radius if ball else math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Of n x d functions the lines below and above, slopes and values at 0 of shape (n, d)."""

    below: tuple[Tensor, Tensor]
    above: tuple[Tensor, Tensor]

    def through(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """A lower bound of given (n, R, d) . f(z): coefficients of z, and a constant (n, R)."""
        positive = given > 0
        slope, at_zero = (
            torch.where(positive, one[:, None], other[:, None])
            for one, other in zip(self.below, self.above, strict=True)
        )
        return given * slope, (given * at_zero).sum(-1)


def elu_lines(low: Tensor, high: Tensor) -> Lines:
    """Chord and tangent of ELUs over [low, high]; any slope is right with its own intercept."""
    width = (high - low).clamp_min(1e-9)
    chord = ((F.elu(high) - F.elu(low)) / width).clamp(0, 1)
    ends = torch.maximum(F.elu(low) - chord * low, F.elu(high) - chord * high)
    at = torch.minimum(torch.maximum(chord.clamp_min(1e-300).log(), low), high)
    tangent = at.clamp(max=0).exp()
    return Lines(below=(tangent, F.elu(at) - tangent * at), above=(chord, ends))


def clip_lines(low: Tensor, high: Tensor, bound: float) -> Lines:
    """Lines around clipping to [-bound, bound] over [low, high].

    Above, the line from the value at `low` to the corner at the bound, or to the value at `high` if
    that lies before it; below, its mirror image.
    """

    def above(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Slope and value at 0."""
        end, start = high.clamp(max=bound), low.clamp(-bound, bound)
        rising = (end.clamp(-bound, bound) - start) / (end - low).clamp_min(1e-9)
        slope = torch.where(end > low, rising, 0).clamp(0, 1)
        return slope, torch.maximum(start - slope * low, end.clamp(-bound, bound) - slope * end)

    slope, at_zero = above(-high, -low)
    return Lines(below=(slope, -at_zero), above=above(low, high))


def identity_lines(shape: tuple[int, int]) -> Lines:
    """Lines of what is linear already."""
    one, zero = torch.ones(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    return Lines(below=(one, zero), above=(one, zero))


def inside(
    given: Tensor, affine: list[tuple[Tensor, Tensor]], lines: list[Lines]
) -> tuple[Tensor, Tensor]:
    """Carry rows (n, R, d) of the last ELU back to before the first product."""
    constant = given.new_zeros(given.shape[:2])
    for (weight, bias), line in zip(reversed(affine), reversed(lines), strict=True):
        given, more = line.through(given)
        constant = constant + more + given @ bias
        given = given @ weight.T
    return given, constant

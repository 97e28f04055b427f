"""Affine arithmetic on tensors: what a network can give, as linear functions of what it is given.

A form says of a tensor x that x = center + sum over g of noise_g * slope_g, up to `rest`, for one
and the same noise in [-1, 1] for all tensors of a network; float32 may move it by `rounding` more.
Without slopes, forms are intervals. Linear operators are exact but for rounding; the others are
replaced by a line and the largest distance to it between the bounds of their argument.

Everything is float64. Rounding follows the standard model: each operation of float32 is exact up to
a factor within 1 +- U, a sum of n terms up to n U of the sum of their sizes, in any order.

Sources: Stolfi and de Figueiredo 1997 (affine arithmetic); Singh et al. 2018 (zonotopes).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

U = 2.0**-24
_SPARE = 8  # units of rounding beside those of a sum: weights that were scaled beforehand
_FUNCTION = 8  # units of rounding that a function such as exp or erf may be off, relative to 1
Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Bounds of one tensor.

    Attributes:
        center: of any shape, float64.
        slope: (G, *shape), one for each noise; G may be 0.
        rest: what slopes do not say, not negative.
        rounding: what float32 may add, not negative.
    """

    center: Tensor
    slope: Tensor
    rest: Tensor
    rounding: Tensor

    @property
    def shape(self) -> torch.Size:
        """Of the tensor."""
        return self.center.shape

    @property
    def reach(self) -> Tensor:
        """How far the tensor may be from its center, in exact arithmetic."""
        return self.slope.abs().sum(0) + self.rest

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest values, rounding included."""
        width = self.reach + self.rounding
        return self.center - width, self.center + width

    def mapped(self, move: Map) -> "Form":
        """What a map that only moves elements gives."""
        return Form(
            center=move(self.center),
            slope=each(move, self.slope),
            rest=move(self.rest),
            rounding=move(self.rounding),
        )

    def linear(self, apply: Map, sizes: Map, terms: int) -> "Form":
        """What a linear map gives.

        Args:
            apply: the map.
            sizes: the same with the absolute values of its weights.
            terms: that are summed for one element.
        """
        spent = sizes(self.size) * (terms + _SPARE) * U
        return Form(
            center=apply(self.center),
            slope=each(apply, self.slope),
            rest=sizes(self.rest),
            rounding=sizes(self.rounding) + spent,
        )

    def scaled(self, factor: Tensor) -> "Form":
        """Each element times a constant."""
        return self.linear(lambda x: x * factor, lambda x: x * factor.abs(), 1)

    def shifted(self, by: Tensor) -> "Form":
        """Each element plus a constant."""
        made = _spread(self, torch.broadcast_shapes(self.shape, by.shape))
        return replace(made, center=made.center + by).rounded()

    @property
    def size(self) -> Tensor:
        """The largest absolute values, rounding included."""
        return self.center.abs() + self.reach + self.rounding

    def rounded(self, units: float | Tensor = 1.0) -> "Form":
        """With the rounding of one operation that gave it, or of several."""
        return replace(self, rounding=self.rounding + self.size * units * U)

    @staticmethod
    def box(low: Tensor, high: Tensor, *, slopes: bool) -> "Form":
        """All tensors between two, by a noise for each element; without slopes, as intervals."""
        center, width = (low + high) / 2, (high - low) / 2
        count = int((width > 0).sum()) if slopes else 0
        slope = center.new_zeros(count, center.numel())
        if slopes:
            at = width.flatten().nonzero()[:, 0]
            slope[torch.arange(count), at] = width.flatten()[at]
        zero = torch.zeros_like(center)
        return Form(
            center=center,
            slope=slope.reshape(count, *center.shape),
            rest=zero if slopes else width,
            rounding=zero,
        )


def each(move: Map, slope: Tensor) -> Tensor:
    """A map of every slope; of none, an empty result of the right shape."""
    if len(slope):
        return torch.vmap(move)(slope)
    return slope.new_zeros(0, *move(slope.new_zeros(slope.shape[1:])).shape)


def add(a: Form, b: Form) -> Form:
    """The sum."""
    shape = torch.broadcast_shapes(a.shape, b.shape)
    a, b = _spread(a, shape), _spread(b, shape)
    made = Form(
        center=a.center + b.center,
        slope=a.slope + b.slope,
        rest=a.rest + b.rest,
        rounding=a.rounding + b.rounding,
    )
    return made.rounded()


def negative(a: Form) -> Form:
    """The form with the other sign."""
    return replace(a, center=-a.center, slope=-a.slope)


def multiply(a: Form, b: Form, times: Callable[[Tensor, Tensor], Tensor], terms: int) -> Form:
    """A product, element by element or of matrices, that sums `terms` products for an element."""
    reach_a, reach_b = a.reach, b.reach
    both = times(a.size, b.size)
    exact = times(a.center.abs() + reach_a, b.center.abs() + reach_b)
    slope = each(lambda t: times(t, b.center), a.slope) + each(
        lambda t: times(a.center, t), b.slope
    )
    return Form(
        center=times(a.center, b.center),
        slope=slope,
        rest=times(a.center.abs(), b.rest)
        + times(a.rest, b.center.abs())
        + times(reach_a, reach_b),
        rounding=both - exact + both * (terms + _SPARE) * U,
    )


def smooth(
    a: Form,
    function: Map,
    slope: Map,
    bend: Callable[[Tensor, Tensor], Tensor],
    floor: Tensor | None = None,
) -> Form:
    """A monotone smooth function of each element.

    The tangent at the center is off by half the largest second derivative times the square of the
    distance; where the interval of the function's values is shorter, it is taken.

    Args:
        a: the argument.
        function: rising or falling between the bounds.
        slope: its derivative.
        bend: the largest size of its second derivative between two bounds.
        floor: that the argument is never below, whatever its bounds say.
    """
    low, high = a.bounds
    low = low if floor is None else torch.maximum(low, floor)
    return _line(
        a, function(a.center), slope(a.center), bend(low, high), function(low), function(high)
    )


def _line(
    a: Form, center: Tensor, tangent: Tensor, bend: Tensor, first: Tensor, last: Tensor
) -> Form:
    """The tangent, or the interval between the values at both ends where that is shorter."""
    width = a.reach + a.rounding
    off = bend * width.square() / 2
    flat = (last - first).abs() / 2
    # A little longer is better with slopes, which later operators can set off against each other.
    taken = tangent.abs() * width + off <= (1.5 if len(a.slope) else 1.0) * flat
    line = torch.where(taken, tangent, torch.zeros_like(tangent))
    made = Form(
        center=torch.where(taken, center, (first + last) / 2),
        slope=a.slope * line,
        rest=a.rest * line.abs() + torch.where(taken, off, flat),
        rounding=a.rounding * line.abs(),
    )
    return made.rounded(_FUNCTION)


def humped(a: Form, function: Map, slope: Map, most: float, turn: float) -> Form:
    """A smooth function that falls until `turn` and rises from there, such as GELU and the square.

    Args:
        a: the argument.
        function: of each element.
        slope: its derivative.
        most: size of its second derivative at most.
        turn: where it is smallest.
    """
    low, high = a.bounds
    values = function(low), function(high)
    inside = (low < turn) & (high > turn)
    least = torch.where(inside, function(torch.full_like(low, turn)), torch.minimum(*values))
    bend = torch.full_like(low, most)
    return _line(a, function(a.center), slope(a.center), bend, least, torch.maximum(*values))


def kinked(a: Form, left: float, right: float) -> Form:
    """left * x where x < 0 and right * x elsewhere, with left <= right: ReLU, |x|, leaky ReLU.

    Between bounds on both sides of 0 a line through the values at both ends lies above it.
    """
    low, high = a.bounds

    def function(x: Tensor) -> Tensor:
        """The function."""
        return torch.where(x < 0, left * x, right * x)

    chord = (function(high) - function(low)) / (high - low).clamp(min=torch.finfo(low.dtype).tiny)
    line = torch.where(high <= 0, left, torch.where(low >= 0, right, chord))
    off = torch.where((low < 0) & (high > 0), (function(low) - line * low) / 2, 0.0)
    made = Form(
        center=line * a.center + off,
        slope=a.slope * line,
        rest=a.rest * line.abs() + off,
        rounding=a.rounding * line.abs(),
    )
    return made.rounded()


def largest(a: Form, axis: int) -> Form:
    """The largest element along an axis, which stays: that of the largest center, or a bit more."""
    place = a.center.argmax(axis, keepdim=True)
    first = a.mapped(lambda x: x.take_along_dim(place, axis))
    low = first.center - a.center - (a.slope - first.slope).abs().sum(0) - a.rest - first.rest
    ahead = torch.zeros_like(low).scatter(axis, place, 1.0) > 0
    gap = (-low).masked_fill(ahead, 0.0).amax(axis, keepdim=True).clamp(min=0) / 2
    most = a.rounding.amax(axis, keepdim=True)
    return Form(center=first.center + gap, slope=first.slope, rest=first.rest + gap, rounding=most)


def narrowed(a: Form, low: Tensor, high: Tensor) -> Form:
    """The form, or as an interval what lies between two bounds that hold too, where shorter."""
    flat = (high - low).clamp(min=0) / 2
    shorter = flat < a.reach + a.rounding
    zero = torch.zeros_like(flat)
    return Form(
        center=torch.where(shorter, (low + high) / 2, a.center),
        slope=a.slope * (~shorter),
        rest=torch.where(shorter, flat, a.rest),
        rounding=torch.where(shorter, zero, a.rounding),
    )


def _spread(a: Form, shape: torch.Size) -> Form:
    """The form as often as broadcasting repeats it."""
    return a if a.shape == shape else a.mapped(lambda x: x.expand(shape))

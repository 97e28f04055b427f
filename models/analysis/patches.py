"""Lower bounds of what changed pixels leave of a margin, for TransJects that read patches alone.

With random eigenvalues, one expert and mean pooling the logits are affine in the mean over patches
of g(patch, place). So a set of changes splits into one problem a patch: how low can
c . g(p, place) fall while the pixels p stay in a region? Two answers are computed, both bounds:

- Lipschitz: sublayers x + s F(x) with Lip(F) <= 1 enlarge a change at most by 1 + s each.
- Linear relaxation: every ELU lies between two lines over the range that its argument can have, the
  chord and a tangent, because it is convex; c . g is then bounded by a linear function of the
  pixels, propagated back from the head, whose least value is known. The ranges come from the same,
  one ELU after the other.

All of it is in float64; `Bound.rounding` bounds what float32 arithmetic can add.

Source: Zhang et al. 2018 (CROWN), theorem 3.2, for residual ELU networks.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.analysis import tokenwise
from models.analysis.relaxation import (
    Lines,
    Region,
    around,
    clip_lines,
    elu_lines,
    identity_lines,
    inside,
)
from models.analysis.tokenwise import UNIT, TokenwiseEncoder, rounding_of_sum
from models.transject_image import TransJectImage

_SHARES = 2.0 ** torch.arange(-3, 1, dtype=torch.float64)  # radii of a patch, of the budget
_PRICES = 2.0 ** torch.linspace(-3, 3, 25, dtype=torch.float64)


def refusal(model: nn.Module) -> str | None:
    """Why nothing is known of a model, in one sentence; None where bounds can be computed."""
    rule = "changes of pixels can be proved of TransJect over images with random eigenvalues"
    if not isinstance(model, TransJectImage):
        return f"{rule}, not of {type(model).__name__}"
    rest = tokenwise.refusal(model.config)
    return None if rest is None else f"{rule}{rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What changes of a set leave of an image's margin, at least.

    Attributes:
        margin: the label's logit minus the largest other one, in exact arithmetic.
        method: which bound told so, 0 by the Lipschitz factor, 1 by linear relaxation.
        places: which patches were taken for replaced, if only some are.
        alone: the margin by the Lipschitz factor alone, and by linear relaxation alone.
        rounding: how far a difference of logits in float32 can lie from the exact one.
    """

    margin: float
    method: int
    places: list[int]
    alone: list[float]
    rounding: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """An unchanged image: its patches (N, P), and of its label against every class (K of them) the
    rows (K, d) of the head, what patches add (N, K), and the biases (K,).
    """

    patches: Tensor
    rows: Tensor
    own: Tensor
    bias: Tensor
    label: int

    def bound(self, falls: Tensor, rounding: float, places: Tensor | None = None) -> Bound:
        """The least margin, from falls (2, K) by method and places (2, n, K) that gave them."""
        margins = (self.own.sum(0) - falls) / len(self.own) + self.bias
        margins[:, self.label] = math.inf
        left, method = margins.max(0)
        other = int(left.argmin())
        return Bound(
            margin=float(left[other]),
            method=int(method[other]),
            places=[] if places is None else places[method[other], :, other].tolist(),
            alone=margins.amin(1).tolist(),
            rounding=rounding,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branch:
    """x + s ELU(... ELU(x W + b) ...)."""

    step: Tensor
    affine: list[tuple[Tensor, Tensor]]


class Patches:
    """Bounds for the patches of images of one model.

    Args:
        model: a TransJectImage that `refusal` has nothing against; it is left as it is.

    Raises:
        ValueError: `refusal` has.
    """

    def __init__(self, model: nn.Module) -> None:
        why = refusal(model)
        if why is not None or not isinstance(model, TransJectImage):
            raise ValueError(why)
        self._encoder = TokenwiseEncoder(model)
        exact = self._encoder.exact
        self.size = model.config.patch_size
        self.places = model.config.seq_len
        self.weight, self.bias = exact.head.weight, exact.head.bias
        self._limit: float | None = getattr(exact.head, "bound", None)
        kernel = exact.patch_embed.proj.weight
        scaled = (kernel / exact.std).flatten(1)  # (half, P)
        shift = exact.patch_embed.proj.bias - (kernel * (exact.mean / exact.std)).sum((1, 2, 3))
        positions = exact.positions.table
        self._pixels = F.pad(scaled, (0, 0, 0, positions.shape[1]))  # (d, P)
        self._fixed = torch.cat((shift.expand(self.places, -1), positions), dim=1)  # (N, d)
        zero = torch.zeros_like(exact.encoder.layers[0].ffn.b1)
        self._branches = [
            _Branch(step=one.step, affine=affine)
            for one in self._encoder.layers
            for affine in ([(one.mixed, zero)], [(one.w1, one.b1), (one.w2, one.b2)])
        ]
        growth = math.prod(1 + abs(float(each.step)) for each in self._branches)
        self._spectral = float(torch.linalg.matrix_norm(scaled, 2))
        self._growth = growth * self._spectral
        self._floors: dict[int, Tensor] = {}
        # What float32 can do to a patch before the encoder, by its pixels and without them.
        self._coarse = (kernel / exact.std).abs().flatten(1)
        self._offset = self._coarse @ exact.mean.expand_as(kernel[:1]).flatten()
        self._offset += exact.patch_embed.proj.bias.abs()

    def cut(self, image: Tensor) -> Tensor:
        """The patches (N, P) float64 of an image (C, H, W), in the order of the model."""
        cut = F.unfold(image[None].double(), self.size, stride=self.size)
        return cut[0].T

    def contributions(self, patches: Tensor, places: Tensor | None = None) -> Tensor:
        """What patches (n, P) at places (n,), or at all, add to N times the logits, (n, K)."""
        fixed = self._fixed if places is None else self._fixed[places]
        return self._encoder.contributions(self._encoder(patches @ self._pixels.T + fixed))

    def box(self, image: Tensor, label: int, radius: float) -> Bound:
        """What is left when every pixel of an image (C, H, W) moves by the radius at most."""
        start = self._start(image, label)
        region = around(start.patches, radius)
        falls = torch.stack((self._steepest(start, region), self._relaxed(start, region)))
        return start.bound(falls.sum(1), self._rounding(region))

    def ball(self, image: Tensor, label: int, radius: float) -> Bound:
        """What is left when an image (C, H, W) moves by the radius at most, l2.

        Patches share the radius r: their parts r_i have squares that sum to r^2 at most. If a part
        below some bound cannot take more than s + n r_i, then all of them together take no more
        than sum_i max(s + n r_i - p r_i^2) + p r^2, whatever the price p >= 0 of a square is; nor
        does a part of a bounded contribution take more than all of it.
        """
        start, count = self._start(image, label), self.places
        steep = self.lipschitz(start.rows) * math.sqrt(count) * radius  # of equal parts
        parts = _SHARES * radius
        taken = [
            self._taken(start, around(start.patches, float(part), ball=True)) for part in parts
        ]
        slack, slopes, most = (torch.stack(each) for each in zip(*taken, strict=True))  # (Q, N, K)
        price = slopes[-1].norm(dim=0) / (2 * radius) * _PRICES[:, None]  # (prices, K)
        price = price.clamp_min(1e-300)[:, None, None]
        least = F.pad(parts[:-1], (1, 0))
        full = ((most - slack) / slopes.clamp_min(1e-300)).minimum(parts[:, None, None])
        best = (slopes / (2 * price)).minimum(full).maximum(least[:, None, None])
        gains = (slack + slopes * best).minimum(most) - price * best**2
        gains = gains.amax(1).sum(1)  # (prices, K)
        shared = (gains + price[:, 0, 0] * radius**2).amin(0)
        whole = around(start.patches, radius, ball=True)
        return start.bound(torch.stack((steep, shared)), self._rounding(whole))

    def aligned(self, image: Tensor, label: int, counts: Sequence[int]) -> list[Bound]:
        """What is left when so many of the model's patches of an image (C, H, W) are replaced."""
        start = self._start(image, label)
        falls, places = self._replaced(start).sort(dim=1, descending=True, stable=True)
        region = around(start.patches, 1.0)
        return [
            start.bound(falls[:, :k].sum(1), self._rounding(region, k), places[:, :k])
            for k in counts
        ]

    def square(self, image: Tensor, label: int, size: int) -> Bound:
        """What is left when a square of so many pixels a side is replaced, wherever it lies.

        It touches a square of the model's patches, all of which are taken for replaced; where that
        proves nothing, only those pixels of them that the square covers.
        """
        start, side = self._start(image, label), math.isqrt(self.places)
        touched = min(math.ceil((size - 1) / self.size) + 1, side)
        grid = torch.arange(self.places).reshape(side, side)
        windows = grid.unfold(0, touched, 1).unfold(1, touched, 1).flatten(2).flatten(0, 1)
        falls, chosen = self._replaced(start)[:, windows].sum(2).max(1)  # (2, K)
        rounding = self._rounding(around(start.patches, 1.0), touched**2)
        bound = start.bound(falls, rounding, windows[chosen].transpose(1, 2))
        if bound.margin > rounding or size >= side * self.size:
            return bound
        falls, where = self._covered(start, size).flatten(2).max(2)
        width, step = side * self.size - size + 1, torch.arange(touched)[:, None, None]
        rows, columns = (
            torch.minimum(first // self.size + step, (first + size - 1) // self.size)
            for first in (where // width, where % width)
        )
        places = (side * rows[:, None] + columns).flatten(0, 1).transpose(0, 1)
        bound = start.bound(falls, rounding, places)
        return replace(bound, places=list(dict.fromkeys(bound.places)))

    def _covered(self, start: _Start, size: int) -> Tensor:
        """How far the image can fall with the pixels of a square, by its place, (2, K, H', W')."""
        side, cut = math.isqrt(self.places), size + self.size - 1
        inside = torch.arange(self.size) - torch.arange(1 - size, self.size)[:, None]
        inside = (inside >= 0) & (
            inside < size
        )  # (cut, patch_size): where it begins, what it covers
        falls = []
        for rows, columns in itertools.product(inside, inside):
            free = (rows[:, None] & columns).flatten().repeat(self._pixels.shape[1] // self.size**2)
            region = Region(
                low=torch.where(free, 0, start.patches),
                high=torch.where(free, 1, start.patches),
                clean=start.patches,
            )
            falls.append(torch.stack((self._steepest(start, region), self._relaxed(start, region))))
        each = torch.stack(falls).permute(1, 3, 0, 2).flatten(0, 1)  # (2 K, cut^2, N)
        width = side * self.size - size + 1
        placed = F.fold(each, (width, width), cut, stride=self.size, padding=size - 1)
        return placed.unflatten(0, (2, -1))[:, :, 0]

    def _start(self, image: Tensor, label: int) -> _Start:
        patches = self.cut(image)
        given = self.contributions(patches)
        return _Start(
            patches=patches,
            rows=self._rows(label),
            own=given[:, label, None] - given,
            bias=self.bias[label] - self.bias,
            label=label,
        )

    def _rows(self, label: int) -> Tensor:
        """The contributions to the label less those to every class, (K, K)."""
        each = torch.eye(len(self.bias), dtype=torch.float64)
        return each[label] - each

    def _steepest(self, start: _Start, region: Region) -> Tensor:
        """How far each patch can fall by its Lipschitz factor, (N, K)."""
        return region.reach[:, None] * self.lipschitz(start.rows)

    def _relaxed(self, start: _Start, region: Region) -> Tensor:
        """How far each patch can fall by the linear relaxation, (N, K)."""
        slopes, values, least = self.relaxed(start.rows, region, torch.arange(self.places))
        return start.own - (values - region.falls(slopes)).maximum(least)

    def _taken(self, start: _Start, region: Region) -> tuple[Tensor, Tensor, Tensor]:
        """The same of parts up to the radius: s, n and the most, (N, K) each."""
        slopes, values, least = self.relaxed(start.rows, region, torch.arange(self.places))
        return start.own - values, region.norms(slopes), start.own - least

    def _replaced(self, start: _Start) -> Tensor:
        """How far each patch can fall whatever its pixels are, (2, N, K)."""
        region = around(start.patches, 1.0)
        return torch.stack((self._steepest(start, region), start.own - self._floor(start.label)))

    def _floor(self, label: int) -> Tensor:
        """What every place adds to the label against every class at least, (N, K)."""
        if label not in self._floors:
            patches = torch.full((self.places, self._pixels.shape[1]), 0.5, dtype=torch.float64)
            region, places = around(patches, 0.5), torch.arange(self.places)
            slopes, values, least = self.relaxed(self._rows(label), region, places)
            self._floors[label] = (values - region.falls(slopes)).maximum(least)
        return self._floors[label]

    def lipschitz(self, rows: Tensor) -> Tensor:
        """How much rows (R, K) times contributions change with the pixels at most, (R,), l2."""
        steep = (rows @ self.weight).norm(dim=1)
        if self._limit is not None:  # which may hold only one side of a difference
            sides = (rows.clamp(min=0), rows.clamp(max=0))
            steep = torch.stack([steep, *((one @ self.weight).norm(dim=1) for one in sides)]).amax(
                0
            )
        return steep * self._growth

    def relaxed(
        self, rows: Tensor, region: Region, places: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Linear functions of the pixels below rows (R, K) times what patches contribute.

        Args:
            rows: weights of the contributions.
            region: where the functions lie below, for n patches.
            places: (n,) of the patches.

        Returns:
            Slopes (n, R, P), the values (n, R) at the unchanged pixels, and constants (n, R) below,
            infinite where nothing bounds a contribution.
        """
        lines: list[list[Lines]] = []
        for branch in self._branches:
            own: list[Lines] = []
            for count in range(len(branch.affine)):
                affine = branch.affine[: count + 1]
                own.append(elu_lines(*self._range(lines, affine, own, region, places)))
            lines.append(own)
        head = [(self.weight.T, torch.zeros_like(self.bias))]
        shape = len(places), len(self.bias)
        last, least = identity_lines(shape), torch.full((shape[0], len(rows)), -math.inf)
        if self._limit is not None:
            low, high = self._range(lines, head, [], region, places)
            last = clip_lines(low, high, self._limit)
            low, high = (each.clamp(-self._limit, self._limit) for each in (low, high))
            least = low @ rows.clamp(min=0).T + high @ rows.clamp(max=0).T
        each = rows.expand(len(places), -1, -1)
        slopes, values = self._back(each, lines, head, [last], region, places)
        return slopes, values, least

    def _range(
        self,
        lines: list[list[Lines]],
        affine: list[tuple[Tensor, Tensor]],
        own: list[Lines],
        region: Region,
        places: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Between what the last of some products in a branch lies, (n, d) each."""
        weight, bias = affine[-1]
        each = weight.T.expand(len(places), -1, -1)
        each = torch.cat((each, -each), dim=1)
        slopes, values = self._back(each, lines, affine[:-1], own, region, places)
        below, above = (values - region.falls(slopes)).chunk(2, dim=1)
        return below + bias, bias - above

    def _back(
        self,
        given: Tensor,
        lines: list[list[Lines]],
        inner: list[tuple[Tensor, Tensor]],
        own: list[Lines],
        region: Region,
        places: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Carry rows (n, R, d) back to the pixels: first inside a branch, then through the rest."""
        given, constant = inside(given, inner, own)
        for branch, known in zip(
            reversed(self._branches[: len(lines)]), reversed(lines), strict=True
        ):
            added, more = inside(branch.step * given, branch.affine, known)
            given, constant = given + added, constant + more
        constant = constant + (given @ self._fixed[places][:, :, None])[..., 0]
        slopes = given @ self._pixels
        return slopes, constant + (slopes @ region.clean[:, :, None])[..., 0]

    def _rounding(self, region: Region, count: int | None = None) -> float:
        """How far a difference of logits in float32 lies from the exact one: a bound.

        Mean and std may be taken from the pixels or be folded into the kernel. The errors of
        float64 in the bounds, 2^-29 of those, are allowed for.

        Args:
            region: where the pixels of all patches lie.
            count: how many patches differ from what they are; None for all of them.
        """
        tokens = region.clean @ self._pixels.T + self._fixed
        terms = rounding_of_sum(2 * self._coarse.shape[1] + 8)
        found: list[tuple[Tensor, Tensor]] = []
        for pixels, reach in ((region.high, region.reach), (region.clean, 0 * region.reach)):
            error = terms * (pixels @ self._coarse.T + self._offset).norm(dim=1)
            error = error + UNIT * self._fixed.norm(dim=1)
            found.append(self._encoder.grown(tokens, reach * self._spectral, error))
        size, error = (
            float(
                same.mean()
                + (moved - same).topk(min(count or self.places, self.places)).values.sum()
                / self.places
            )
            for moved, same in zip(*found, strict=True)
        )
        return self._encoder.rounding(size, error, self.places) * (1 + 2.0**-10)

"""Branch and bound over the statistics that substitutions in one text can lead to."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from models.analysis.reach import center, gate_box, gate_reach, least, tightened
from models.analysis.shared import Moved, Seen, Sizes
from models.analysis.substitutions import WorstCase

if TYPE_CHECKING:
    from models.analysis.bounds import Bounds

_BOXES = 48  # that one bound may look at
_FAR = 10  # how many times its center's bound a box may lack before it is given up

_Box = list[tuple[Tensor, Tensor]]
"""Bounds (E,) of the gates of each layer."""


@dataclass(slots=True, kw_only=True)
class _Bound:
    """A bound in a box.

    Attributes:
        margin: no text in reach whose gates lie in the box falls below.
        still: what it would be if the box were its center.
        places: of the worst substitutions, by this count.
        pieces: their ids.
        layer: whose gates a next cut should halve.
    """

    margin: float
    still: float
    places: list[int] = field(default_factory=list)
    pieces: list[int] = field(default_factory=list)
    layer: int = 0


@dataclass(slots=True, kw_only=True)
class _Singles:
    """Single substitutions at fixed gates.

    Attributes:
        own: (N,) N times the lead that each token gives.
        tangent: (N,) what its share of the eigenvalues gives, by their tangent.
        lowest: (N,) the least of the sum of both that any piece gives.
        pieces: (N,) the pieces that do.
        kept: of the lead, whatever is replaced.
    """

    own: Tensor
    lowest: Tensor
    pieces: Tensor
    tangent: Tensor | float = 0.0
    kept: float = 0.0

    def largest(self, wide: Tensor, bound: float, count: int) -> tuple[float, list[int], list[int]]:
        """What the `count` largest gains take, at which places and by which pieces.

        Args:
            wide: (N,) what the movement of both tokens adds to a gain.
            bound: of a gain without the tangent.
            count: number of substitutions.
        """
        gains = self.own + self.tangent - self.lowest + wide
        if isinstance(self.tangent, float):
            gains = gains.clamp_max(bound)
        best, places = gains.clamp_min(0).sort(descending=True, stable=True)
        places = places[:count]
        loss = float(best[:count].sum()) / len(gains) - self.kept
        return loss, places.tolist(), self.pieces[places].tolist()


class TextBound:
    """The bound of one text, label and number of substitutions."""

    def __init__(self, model: "Bounds", tokens: Tensor, label: int, count: int) -> None:
        self._model, self._encoder = model, model.encoder
        self._tokens, self._label = tokens, label
        self._count = min(count, len(tokens))
        self._x = self._encoder.tokens(tokens)
        self._spectrum = model.spectrum(self._x, self._count)
        own = model.eigenvalues if self._spectrum is None else self._spectrum.values
        low, high = (own, own) if self._spectrum is None else self._spectrum.box
        self._eigenvalues = own
        self._beta = float(_apart(own, low, high).amax())
        self._away = _apart(model.eigenvalues, low, high)

    def worst(self) -> WorstCase:
        """See `Bounds.worst`."""
        box = self._reach()
        root = self._bounded(box)
        margin = root.margin
        if margin <= 0 < margin + _FAR * root.still and self._found(root) > 0:
            margin = self._branched(box, root)
        return WorstCase(margin=margin, places=root.places, pieces=root.pieces)

    def _reach(self) -> _Box:
        """Which gates the substitutions can lead to, in float32, too."""
        box, proposals = [], iter(self._model.proposals)
        _, seen = self._encoder.read(self._x, self._encoder.mixed(self._eigenvalues))
        near, far = Moved.nowhere(len(self._x)), Moved.nowhere(1)
        _, rounding = self._encoder.rounding(len(self._x))
        for number, (layer, own) in enumerate(zip(self._encoder.layers, seen, strict=True)):
            sizes, largest = self._encoder.sizes(layer, own), self._model.sizes[number]
            step, turned, wide = abs(layer.step), self._turned(sizes), self._turned_far(largest)
            low = high = own.gate
            if layer.gate is not None:
                gap = float((far.delta + wide).amax())
                reach = (
                    gate_reach(
                        layer.gate,
                        own.entered + layer.step * own.proposed,
                        (near.delta + step * (near.delta + turned))[:, :, None],
                        next(proposals),
                        (float(far.delta) + step * gap, 2 * step * gap),
                        self._count,
                    )
                    + rounding[number]
                )
                low, high = gate_box(reach.fill_diagonal_(0))
            box.append((low, high))
            near = near.after(layer, sizes, turned, self._beta, _apart(own.gate, low, high))
            far = self._far(far, number, low, high)
        return box

    def _turned(self, sizes: Sizes) -> Tensor:
        """Bounds (E, N) of how far eigenvalues turn the text's tokens."""
        if self._spectrum is None:
            return torch.zeros_like(sizes.spread)
        return self._spectrum.moved(sizes.squares)

    def _turned_far(self, sizes: Sizes) -> Tensor:
        """Bounds (E, 1) of how far those in reach turn any token of the table."""
        if self._spectrum is None:
            return torch.zeros_like(sizes.spread)
        return (sizes.squares @ self._away.square()).sqrt()

    def _far(self, far: Moved, number: int, low: Tensor, high: Tensor) -> Moved:
        """The movement of tokens of the table after one more layer."""
        layer, largest = self._encoder.layers[number], self._model.sizes[number]
        gamma = _apart(self._model.gates[number], low, high)
        beta = float(self._away.amax())
        return far.after(layer, largest, self._turned_far(largest), beta, gamma)

    def _bounded(self, box: _Box) -> _Bound:
        """The bound of all texts in reach whose gates lie in a box."""
        gates = [center(*each).requires_grad_() for each in box]
        eigenvalues = self._eigenvalues.clone().requires_grad_()
        with torch.enable_grad():
            out, seen = self._encoder.read(self._x, self._encoder.mixed(eigenvalues), gates)
            logits = self._encoder.contributions(out).mean(0) + self._encoder.head.bias
            margins = (logits[self._label] - logits).unbind()
        moved, widths = self._moved(box, seen)
        still, _ = self._moved([(each.gate, each.gate) for each in seen], seen)
        found = []
        for other in set(range(len(margins))) - {self._label}:
            slopes = torch.autograd.grad(
                margins[other], [eigenvalues, *gates], retain_graph=True, allow_unused=True
            )
            margin, singles = float(margins[other].detach()), self._singles(other, out, slopes[0])
            bound = self._against(other, margin, singles, out, moved)
            bound.still = self._against(other, margin, singles, out, still).margin
            for slope, gate, bounds in zip(slopes[1:], gates, box, strict=True):
                if slope is not None:
                    bound.margin += float(least(slope, *bounds) - slope @ gate)
            found.append(bound)
        worst = min(found, key=lambda each: each.margin)
        worst.still = min(each.still for each in found)
        worst.layer = widths.index(max(widths))
        return worst

    def _moved(self, box: _Box, seen: Sequence[Seen]) -> tuple[tuple[Moved, Moved], list[float]]:
        """Movements of the text's tokens and of those of the table, and what each gate moves."""
        near, far, widths = Moved.nowhere(len(self._x)), Moved.nowhere(1), []
        for number, (layer, own) in enumerate(zip(self._encoder.layers, seen, strict=True)):
            sizes, gamma = self._encoder.sizes(layer, own), _apart(own.gate, *box[number])
            near = near.after(layer, sizes, self._turned(sizes), self._beta, gamma)
            far = self._far(far, number, *box[number])
            widths.append(abs(layer.step) * float(gamma @ sizes.spread.mean(1)))
        return (near, far), widths

    def _against(
        self,
        other: int,
        margin: float,
        singles: Sequence["_Singles"],
        out: Tensor,
        moved: tuple[Moved, Moved],
    ) -> _Bound:
        """`_bounded` for one other class, with the gates of the center."""
        wide = self._encoder.steepness(self._label, other) * (moved[0].delta + moved[1].delta)
        found = [each.largest(wide, self._encoder.bound, self._count) for each in singles]
        loss, places, pieces = max(found, key=lambda each: each[0])
        margin -= loss + self._encoder.remainder(out, moved[0], self._label, other)
        return _Bound(margin=margin, still=margin, places=places, pieces=pieces)

    def _singles(self, other: int, out: Tensor, slope: Tensor | None) -> list["_Singles"]:
        """What single substitutions take from the lead over another class."""
        given, length, spec = self._encoder.contributions(out), len(out), self._spectrum
        own = given[:, self._label] - given[:, other]
        if spec is None or slope is None:
            lowest, pieces = self._model.lowest(self._label, other, length)
            return [_Singles(own=own, lowest=lowest, pieces=pieces)]
        differences, found = self._model.differences(self._label, other, length), []
        pull, top = float(slope @ spec.values), int(spec.raw.argmax())
        # Where a larger divisor takes from the lead, any mean that can become it may be it.
        heads = [top] if pull <= 0 else (spec.high >= spec.low.amax()).nonzero()[:, 0].tolist()
        for head in heads:
            turned = slope.clone()
            turned[head] -= pull
            squares = self._model.squares(turned, length)
            before = squares[torch.arange(length), self._tokens]
            for largest in spec.scale:
                lowest, pieces = (differences + squares / largest).min(1)
                found.append(
                    _Singles(
                        own=own,
                        tangent=before / largest,
                        lowest=lowest,
                        pieces=pieces,
                        kept=pull * float(spec.raw[top] - spec.raw[head]) / largest,
                    )
                )
        return found

    def _found(self, bound: _Bound) -> float:
        """The margin of the model after the substitutions of a bound."""
        tokens = self._tokens.clone()
        tokens[bound.places] = torch.tensor(bound.pieces, dtype=torch.int64)
        margins = self._encoder.margins(tokens, self._label)
        return float(torch.cat((margins[: self._label], margins[self._label + 1 :])).amin())

    def _branched(self, box: _Box, root: _Bound) -> float:
        """The bound after boxes have been halved, unless smaller ones cannot help."""
        heap, number = [(root.margin, 0, box, root)], 1
        while number < _BOXES and heap[0][0] <= 0 < heap[0][3].still:
            margin, _, box, bound = heap[0]
            halves = _halves(box, bound.layer)
            if halves is None:
                break
            heapq.heappop(heap)
            for half in halves:
                inside = self._bounded(half)
                number += 1
                heapq.heappush(heap, (max(margin, inside.margin), number, half, inside))
        return heap[0][0]


def _apart(own: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.maximum(high - own, own - low)


def _halves(box: _Box, layer: int) -> list[_Box] | None:
    """The box, cut through the widest gate of a layer; None if it has no width."""
    low, high = box[layer]
    widest = int((high - low).argmax())
    if float(high[widest] - low[widest]) < 1e-6:
        return None
    middle, halves = float(low[widest] + high[widest]) / 2, []
    for bound in (0, 1):
        part = [low.clone(), high.clone()]
        part[1 - bound][widest] = middle
        found = tightened(*part)
        if found is not None:
            halves.append([*box[:layer], found, *box[layer + 1 :]])
    return halves

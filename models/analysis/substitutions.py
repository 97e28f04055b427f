"""The exact worst case of substituted pieces, for TransJects that read each piece by itself.

With random eigenvalues and one expert the encoder is one map of single tokens, and the mean makes
the logits affine in it: logits = mean over tokens of g(piece, place) + bias. So what one
substitution does to the difference of two logits does not depend on the others, and the worst of
k substitutions takes the k places with the largest gains. This needs g of every piece at every
place, and no search.

All of it is computed in float64 from the float32 weights; `Substitutions.rounding` bounds what
float32 arithmetic can add, in whatever order it sums.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.transject import TransJect

_ROWS = 8192  # tokens that are encoded at once; always as many, so that sums end in the same bits
_UNIT = 2.0**-24  # relative error of one rounding to float32
_ELU = 16 * _UNIT  # error of one ELU, relative to |x| + 1: runtimes approximate the exponential


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """The worst that so many substitutions can do to one text.

    Attributes:
        margin: the label's logit minus the largest other one, in exact arithmetic.
        places: which tokens are replaced, the largest gain first.
        pieces: by which ids.
    """

    margin: float
    places: list[int]
    pieces: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One layer in float64: x + s ELU(x M), then x + s ELU(ELU(x W1 + b1) W2 + b2)."""

    step: Tensor
    mixed: Tensor
    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor


def refusal(model: nn.Module) -> str | None:
    """Why the worst case of a model is not known exactly, in one sentence; None where it is."""
    rule = "substitutions can be proved of TransJect over texts with random eigenvalues"
    if not isinstance(model, TransJect):
        return f"{rule} in one tower, not of {type(model).__name__}"
    config = model.config
    if not config.random_eigenvalues:
        return f"{rule}; computed from the text, they make every token depend on all others"
    if config.num_experts > 1:
        return f"{rule} and one expert; the gate of {config.num_experts} sees all tokens at once"
    if config.pooling != "mean":
        return f"{rule} and mean pooling; with {config.pooling} pooling one token hides others"
    return None


class Substitutions:
    """Worst cases of substitutions in texts of one model.

    The table of the worst piece at every place grows with the longest text: vocabulary x length
    tokens are encoded once.

    Args:
        model: a TransJect that `refusal` has nothing against; it is left as it is.

    Raises:
        ValueError: `refusal` has.
    """

    def __init__(self, model: nn.Module) -> None:
        why = refusal(model)
        if why is not None or not isinstance(model, TransJect):
            raise ValueError(why)
        with torch.no_grad():
            exact = copy.deepcopy(model).cpu().double().eval().requires_grad_(False)
            self._layers = [_layer(each, exact.encoder) for each in exact.encoder.layers]
            self._embedding = exact.embedding.weight
            self._positions = exact.positions.table
            self._weight, self._bias = exact.head.weight, exact.head.bias
            self._lowest = self._weight.new_empty((0, len(self._bias), len(self._bias)))
            self._pieces = torch.empty(self._lowest.shape, dtype=torch.int64)
            self._size, self._error = _norms(self, model, exact)

    def contributions(self, tokens: Tensor, places: Tensor) -> Tensor:
        """What tokens (N,) at places (N,) add to N times the logits, (N, K) float64."""
        x = torch.cat((self._embedding[tokens], self._positions[places]), dim=-1)
        for layer in self._layers:
            x = x + layer.step * F.elu(x @ layer.mixed)
            inner = F.elu(x @ layer.w1 + layer.b1)
            x = x + layer.step * F.elu(inner @ layer.w2 + layer.b2)
        return x @ self._weight.T

    def extend(self, length: int, before: Callable[[], object] | None = None) -> None:
        """Find the worst piece of every pair of classes at the first places.

        Args:
            length: number of places.
            before: called before each place; what it raises ends the work, and finished places
                stay.
        """
        pieces = torch.arange(len(self._embedding))
        for place in range(len(self._lowest), length):
            if before is not None:
                before()
            given = torch.cat(
                [self.contributions(p, torch.full_like(p, place)) for p in pieces.split(_ROWS)]
            )  # (V, K)
            found = [(own[:, None] - given).min(0) for own in given.unbind(1)]
            lowest, chosen = (torch.stack([pair[i] for pair in found]) for i in (0, 1))
            self._lowest = torch.cat((self._lowest, lowest[None]))
            self._pieces = torch.cat((self._pieces, chosen[None]))

    def worst(self, tokens: Tensor, label: int, counts: Sequence[int]) -> list[WorstCase]:
        """The worst cases of at most so many substitutions, by any pieces at any places.

        Args:
            tokens: (N,) int64, the text.
            label: class that the text should keep.
            counts: numbers of substitutions.
        """
        length = len(tokens)
        self.extend(length)
        given = self.contributions(tokens, torch.arange(length))  # (N, K)
        own = given[:, label, None] - given
        margins = own.mean(0) + self._bias[label] - self._bias
        gains = own - self._lowest[:length, label]
        best, places = gains.sort(dim=0, descending=True, stable=True)
        found = []
        for count in counts:
            left = margins - best[:count].sum(0) / length
            left[label] = math.inf
            other = int(left.argmin())
            chosen = places[:count, other]
            found.append(
                WorstCase(
                    margin=float(left[other]),
                    places=chosen.tolist(),
                    pieces=self._pieces[chosen, label, other].tolist(),
                )
            )
        return found

    def rounding(self, length: int) -> float:
        """How far a difference of logits of `length` tokens in float32 lies from the exact one.

        A bound and no estimate: norms of tokens and of their errors are carried from layer to
        layer, an inner product of n terms is wrong by n units of |x| |w| at most, and the matrices
        by as much as those of the model differ from the exact ones.

        Source: Higham 2002, section 3.1.
        """
        error = self._error + _sum(length + 4) * (self._size + self._error)
        norms = self._weight.norm(dim=1)
        pairs = (self._weight[:, None] - self._weight).norm(dim=-1) * error
        sums = norms[:, None] + norms
        biases = self._bias.abs()[:, None] + self._bias.abs()
        dim = self._weight.shape[1]
        each = pairs + _sum(dim + 2) * sums * (self._size + error) + 2 * _UNIT * biases
        return float(each.max())


def _layer(layer: Any, encoder: Any) -> _Layer:
    (u,), (v,) = layer.experts.u.stacked(), layer.experts.v.stacked()
    w1, w2 = layer.ffn.w.stacked()
    eigenvalues = encoder.eigenvalues(u[None])[0]
    return _Layer(
        step=layer.step, mixed=(u * eigenvalues) @ v, w1=w1, b1=layer.ffn.b1, w2=w2, b2=layer.ffn.b2
    )


def _norms(found: Substitutions, model: TransJect, exact: TransJect) -> tuple[float, float]:
    """Bounds of an encoded token's norm, and of its error in float32."""
    dim = found._weight.shape[1]
    size = math.hypot(
        float(found._embedding.norm(dim=1).max()), float(found._positions.norm(dim=1).max())
    )
    error = _UNIT * size
    product = _sum(dim + 4) * math.sqrt(dim)
    for layer, served, own in zip(
        found._layers, model.encoder.layers, exact.encoder.layers, strict=True
    ):
        step, served, own = abs(float(layer.step)), _matrices(served), _matrices(own)
        wrong = [product + float((a - b).norm()) for a, b in zip(served, own, strict=True)]
        first = (1 + wrong[0]) * (1 + wrong[1]) - 1
        inner = _elu(size, error + first * (size + error), dim)
        size, error = _added(size, error, step, size, inner)
        inside = size + float(layer.b1.norm())
        inner = _elu(inside, error + wrong[2] * (size + error), dim)
        outer = inside + float(layer.b2.norm())
        inner = _elu(outer, inner + wrong[3] * (inside + inner), dim)
        size, error = _added(size, error, step, outer, inner)
    return size, error


def _matrices(layer: Any) -> list[Tensor]:
    """U, V, W1 and W2 in float64, as the layer has them."""
    stacks = layer.experts.u, layer.experts.v, layer.ffn.w
    return [matrix.cpu().double() for stack in stacks for matrix in stack.stacked()]


def _elu(size: float, error: float, dim: int) -> float:
    """The error after an addition and an ELU, which itself enlarges no difference."""
    error += _UNIT * (size + error)
    return error + _ELU * (size + error + math.sqrt(dim))


def _added(
    size: float, error: float, step: float, other: float, inner: float
) -> tuple[float, float]:
    """Norm and error of x + step y: `other` and `inner` are those of y."""
    grown = size + step * other
    summed = error + step * inner
    return grown, summed + 8 * _UNIT * (grown + summed)


def _sum(terms: int) -> float:
    """Relative error of a sum of products with so many roundings, in any order."""
    return terms * _UNIT / (1 - terms * _UNIT)

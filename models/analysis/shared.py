"""TransJects in float64 at given statistics, and how far tokens move when the statistics do.

What tokens learn of each other are a few statistics of the text: the eigenvalues, and the gates of
each layer. At given statistics an encoder reads each token by itself.

Movements are norms: delta bounds how far a token lies from where it was, rho how far from its
tangent. With orthogonal matrices of norm 1, eigenvalues of at most 1, |ELU'| <= 1 and |ELU''| <= 1,
gates that move by gamma and pre-activations that move by pi, Y = X + s sum_e g_e F_e has

    delta_Y = delta + s (max pi + sum gamma ||F_e - F||)
    rho_Y   = rho + s (max (rho_pi + pi^2 / 2) + sum gamma pi),

F the mean of F_e by the gates; the feed-forward makes of them delta_Y (1 + s) and
rho_Y (1 + s) + s delta_Y^2.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from models.analysis.tokenwise import (
    ELU,
    UNIT,
    logits_rounding,
    matrices_of,
    rounding_of_sum,
)
from models.layers.contributions import BoundedHead, contributions
from models.transject import TransJect

_SOFTMAX = 24 * UNIT  # relative error of one weight of a softmax, but for its sums


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLayer:
    """One layer in float64; `gate` is None for one expert."""

    step: float
    u: Tensor
    v: Tensor
    gate: Tensor | None
    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor

    def mixed(self, eigenvalues: Tensor) -> Tensor:
        """U_e Sigma V_e, (E, d, d)."""
        return (self.u * eigenvalues) @ self.v

    def fed(self, x: Tensor) -> Tensor:
        """Tokens (N, d) after the feed-forward."""
        inner = F.elu(x @ self.w1 + self.b1)
        return x + self.step * F.elu(inner @ self.w2 + self.b2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a layer does with tokens.

    Attributes:
        entered: (N, d) tokens.
        proposed: (E, N, d), F_e of each.
        gate: (E,) that mixes them.
    """

    entered: Tensor
    proposed: Tensor
    gate: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of tokens in a layer, or the largest of many.

    Attributes:
        squares: (E, N, d) of x U_e; zeros (E, N, 1) where eigenvalues never move.
        spread: (E, N), ||F_e - F||.
    """

    squares: Tensor
    spread: Tensor

    def largest(self, other: "Sizes | None" = None) -> "Sizes":
        """The largest over tokens, as of one token, also of others."""
        squares, spread = self.squares.amax(1, keepdim=True), self.spread.amax(1, keepdim=True)
        if other is not None:
            squares = torch.maximum(squares, other.squares)
            spread = torch.maximum(spread, other.spread)
        return Sizes(squares=squares, spread=spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """How far tokens lie from where they were, and from their tangents; both (N,)."""

    delta: Tensor
    rho: Tensor

    @classmethod
    def nowhere(cls, count: int) -> "Moved":
        """Of tokens that stay."""
        nothing = torch.zeros(count, dtype=torch.float64)
        return cls(delta=nothing, rho=nothing)

    def after(
        self, layer: SharedLayer, sizes: Sizes, turned: Tensor, beta: float, gamma: Tensor
    ) -> "Moved":
        """The movement of the same tokens after a layer.

        Args:
            layer: the layer.
            sizes: of the tokens that enter it, where they were.
            turned: (E, N) bounds of ||x U_e (Sigma' - Sigma)||.
            beta: the largest change of an eigenvalue.
            gamma: (E,) the largest change of each gate.
        """
        s, pre = abs(layer.step), self.delta + turned
        inner = self.rho + self.delta * beta + pre.square() / 2
        delta = self.delta + s * (pre.amax(0) + gamma @ sizes.spread)
        rho = self.rho + s * (inner.amax(0) + gamma @ pre)
        return Moved(delta=delta * (1 + s), rho=rho * (1 + s) + s * delta.square())


class SharedEncoder:
    """A TransJect over texts with mean pooling, in float64.

    Args:
        model: it is left as it is.

    Attributes:
        u0: (d, d) that computes eigenvalues; None where they are `fixed`.
        fixed: (d,) eigenvalues of every text, or None.
    """

    def __init__(self, model: TransJect) -> None:
        with torch.no_grad():
            exact: Any = copy.deepcopy(model).cpu().double().eval().requires_grad_(False)
            served: Any = model
            self.layers = [_layer(each) for each in exact.encoder.layers]
            self.embedding, self.positions = exact.embedding.weight, exact.positions.table
            self.head = exact.head
            self.u0: Any = None
            self.fixed: Tensor | None = None
            if exact.encoder.u0 is None:
                self.fixed = exact.encoder.eigenvalues(self.embedding[None])[0]
            else:
                self.u0 = exact.encoder.u0.weight
                wrong = served.encoder.u0.weight.cpu().double() - self.u0
                self._u0_wrong = float(wrong.norm())
            self._rounding: dict[int, tuple[float, list[float]]] = {}
            pairs = zip(served.encoder.layers, exact.encoder.layers, strict=True)
            self._wrong = [_differences(*pair) for pair in pairs]

    def tokens(self, ids: Tensor) -> Tensor:
        """X0 (N, d) of ids (N,) at the first places."""
        return torch.cat((self.embedding[ids], self.positions[: len(ids)]), dim=-1)

    def eigenvalues(self, x: Tensor) -> Tensor:
        """Those (d,) of a text X0 (N, d)."""
        if self.fixed is not None:
            return self.fixed
        means = (x @ self.u0).square().mean(0)
        return means / means.amax()

    def mixed(self, eigenvalues: Tensor) -> list[Tensor]:
        """The matrices (E, d, d) of each layer."""
        return [each.mixed(eigenvalues) for each in self.layers]

    def read(
        self, x: Tensor, mixed: Sequence[Tensor], gates: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, list[Seen]]:
        """Encode tokens (N, d), with given gates (E,) of each layer or with their own."""
        seen = []
        for number, (layer, matrices) in enumerate(zip(self.layers, mixed, strict=True)):
            proposed = F.elu(x @ matrices)
            if gates is not None:
                gate = gates[number]
            elif layer.gate is None:
                gate = x.new_ones(1)
            else:
                gate = ((x + layer.step * proposed).amax(1) @ layer.gate).softmax(0)
            seen.append(Seen(entered=x, proposed=proposed, gate=gate))
            x = layer.fed(x + layer.step * torch.einsum("e,end->nd", gate, proposed))
        return x, seen

    def sizes(self, layer: SharedLayer, seen: Seen) -> Sizes:
        """Of tokens in a layer."""
        middle = torch.einsum("e,end->nd", seen.gate, seen.proposed)
        spread = (seen.proposed - middle).norm(dim=-1)
        if self.u0 is None:
            return Sizes(squares=torch.zeros_like(spread)[:, :, None], spread=spread)
        return Sizes(squares=(seen.entered @ layer.u).square(), spread=spread)

    def contributions(self, x: Tensor) -> Tensor:
        """What encoded tokens (N, d) add to the logits before the mean, (N, K)."""
        return contributions(self.head, x)

    def margins(self, tokens: Tensor, label: int) -> Tensor:
        """How far the label's logit is above each of those (K,) of a text (N,)."""
        x = self.tokens(tokens)
        out, _ = self.read(x, self.mixed(self.eigenvalues(x)))
        logits = self.contributions(out).mean(0) + self.head.bias
        return logits[label] - logits

    def steepness(self, label: int, other: int) -> float:
        """How much faster than a token the difference of what it adds to two logits can move."""
        weight = self.head.weight
        if isinstance(self.head, BoundedHead):
            return float(weight[label].norm() + weight[other].norm())
        return float((weight[label] - weight[other]).norm())

    @property
    def bound(self) -> float:
        """The largest difference of what a token adds to two logits, twice."""
        return 4 * self.head.bound if isinstance(self.head, BoundedHead) else math.inf

    def remainder(self, x: Tensor, moved: Moved, label: int, other: int) -> float:
        """How far a difference of two logits lies from its tangent, for encoded tokens (N, d)."""
        if not isinstance(self.head, BoundedHead):
            return self.steepness(label, other) * float(moved.rho.mean())
        total = 0.0
        for row in self.head.weight[[label, other]]:
            steep, beyond = float(row.norm()), (x @ row).abs() - self.head.bound
            crossed = (beyond + steep * moved.delta).clamp_min(0)  # from inside
            crossed = crossed + steep * moved.rho
            entered = (steep * moved.delta - beyond).clamp_min(0)  # from outside
            total += float(torch.where(beyond <= 0, crossed, entered).mean())
        return total

    def rounding(self, length: int) -> tuple[float, list[float]]:
        """What float32 adds: to a difference of logits, and to z_e - z_f of each layer's gate.

        Both are bounds, as `TokenwiseEncoder.grown` with the largest norms and with the error of
        the eigenvalues. The first one holds for the gates as float32 has them, which lie within the
        second of the exact ones.

        Args:
            length: number of tokens.
        """
        if length not in self._rounding:
            norms = [each.norm(dim=1) for each in (self.embedding, self.positions[:length])]
            size = math.hypot(*(float(each.max()) for each in norms))
            smallest = math.hypot(*(float(each.min()) for each in norms))
            error, gates = UNIT * size, []
            beta = self._eigenvalue_rounding(size, smallest, length)
            for layer, wrong in zip(self.layers, self._wrong, strict=True):
                size, error, gate = _rounded(layer, wrong, size, error, beta)
                gates.append(gate)
            self._rounding[length] = logits_rounding(self.head, size, error, length), gates
        return self._rounding[length]

    def _eigenvalue_rounding(self, size: float, smallest: float, length: int) -> float:
        """Error of an eigenvalue; their largest mean of squares is at least ||x||^2 / d."""
        if self.u0 is None:
            return 0.0
        dim = len(self.u0)
        own = (rounding_of_sum(dim + 4) + self._u0_wrong + UNIT) * size
        root = smallest / math.sqrt(dim)
        if root <= 2 * own:
            return math.inf
        # The mean of 2 |u| own is at most 2 own sqrt(mean), so that the root bounds the quotient.
        each = 2 * own / root + (own / root) ** 2
        each += rounding_of_sum(length + 8) * (1 + each)
        return 2 * each / (1 - each) + UNIT if each < 1 else math.inf


def _layer(layer: Any) -> SharedLayer:
    w1, w2 = layer.ffn.w.stacked()
    gate = layer.experts.gate
    return SharedLayer(
        step=float(layer.step), u=layer.experts.u.stacked(), v=layer.experts.v.stacked(),
        gate=None if gate is None else gate.weight[0], w1=w1, b1=layer.ffn.b1, w2=w2,
        b2=layer.ffn.b2,
    )  # fmt: skip


def _differences(served: Any, exact: Any) -> list[float]:
    """How far U, V, W1 and W2 of the model in float32 lie from the exact ones, at most."""
    own = [
        float((a - b).norm()) for a, b in zip(matrices_of(served), matrices_of(exact), strict=True)
    ]
    count = (len(own) - 2) // 2
    return [max(own[:count]), max(own[count:-2]), *own[-2:]]


def _rounded(
    layer: SharedLayer, wrong: Sequence[float], size: float, error: float, beta: float
) -> tuple[float, float, float]:
    """Bounds of a token's norm and of its error after a layer, and of the error of z_e - z_f."""
    dim, step, scores = len(layer.b1), abs(layer.step), 0.0
    rotations = [rounding_of_sum(dim + 4) * math.sqrt(dim) + each for each in wrong]
    first = (1 + rotations[0]) * (1 + rotations[1]) * (1 + beta) - 1
    inner = _elu(size, error + first * (size + error), dim)
    size, error = _added(size, error, step, size, inner)
    if layer.gate is not None:
        experts, weights = len(layer.u), float(layer.gate.abs().sum())
        score = weights * (error + (rounding_of_sum(dim + 2) + 4 * UNIT) * (size + error))
        # Gates that do not quite sum to 1 are such ones times a number close to 1.
        mixed = _SOFTMAX + rounding_of_sum(2 * experts + 4)
        scores, error = 2 * score + 2 * mixed, error + 2 * mixed * (size + error)
    inside = size + float(layer.b1.norm())
    inner = _elu(inside, error + rotations[2] * (size + error), dim)
    outer = inside + float(layer.b2.norm())
    inner = _elu(outer, inner + rotations[3] * (inside + inner), dim)
    return *_added(size, error, step, outer, inner), scores


def _elu(size: float, error: float, dim: int) -> float:
    """The error after an addition and an ELU, which itself enlarges no difference."""
    error += UNIT * (size + error)
    return error + ELU * (size + error + math.sqrt(dim))


def _added(
    size: float, error: float, step: float, other: float, inner: float
) -> tuple[float, float]:
    """Norm and error of x + step y: `other` and `inner` are those of y."""
    grown = size + step * other
    summed = error + step * inner
    return grown, summed + 8 * UNIT * (grown + summed)

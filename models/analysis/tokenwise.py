"""Encoders that are one map of single tokens, in float64, and what float32 arithmetic adds to them.

With random eigenvalues and one expert every sublayer of a TransJect is x + s F(x), token by token,
and with mean pooling the logits are affine in the mean over tokens of g(token, place). What one
token does to them does not depend on the others.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.layers.contributions import BoundedHead, contributions

UNIT = 2.0**-24
"""Relative error of one rounding to float32."""
ELU = 16 * UNIT
"""Error of one ELU in float32, relative to |x| + 1: runtimes approximate the exponential."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactLayer:
    """One layer in float64: x + s ELU(x M), then x + s ELU(ELU(x W1 + b1) W2 + b2)."""

    step: Tensor
    mixed: Tensor
    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Tokens (..., d) after the layer."""
        x = x + self.step * F.elu(x @ self.mixed)
        inner = F.elu(x @ self.w1 + self.b1)
        return x + self.step * F.elu(inner @ self.w2 + self.b2)


def refusal(config: Any) -> str | None:
    """Why the tokens of a TransJect meet before they are averaged, as the end of a sentence.

    Args:
        config: of a TransJect over texts or images.
    """
    if not config.random_eigenvalues:
        return "; computed from the input, they make every token depend on all others"
    if config.num_experts > 1:
        return f" and one expert; the gate of {config.num_experts} sees all tokens at once"
    if config.pooling != "mean":
        return f" and mean pooling; with {config.pooling} pooling one token hides others"
    return None


class TokenwiseEncoder:
    """The layers of a model that `refusal` has nothing against, in float64.

    Args:
        model: a TransJect over texts or images; it is left as it is.

    Attributes:
        exact: a copy of the model in float64.
        layers: its layers, in their order.
    """

    def __init__(self, model: nn.Module) -> None:
        with torch.no_grad():
            self.exact: Any = copy.deepcopy(model).cpu().double().eval().requires_grad_(False)
            encoder = self.exact.encoder
            self.layers = [_layer(each, encoder) for each in encoder.layers]
            served: Any = model
            pairs = zip(served.encoder.layers, encoder.layers, strict=True)
            # How far each matrix of the model in float32 lies from the exact one.
            self._wrong = [
                [float((a - b).norm()) for a, b in zip(matrices_of(x), matrices_of(y), strict=True)]
                for x, y in pairs
            ]

    def __call__(self, x: Tensor) -> Tensor:
        """Encode tokens (..., d)."""
        for layer in self.layers:
            x = layer(x)
        return x

    def contributions(self, x: Tensor) -> Tensor:
        """What encoded tokens (..., d) add to the logits before mean and bias, (..., K)."""
        return contributions(self.exact.head, x)

    def grown(self, x: Tensor, reach: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of encoded tokens' norms (N,), and of their errors in float32 (N,).

        Norms are carried from sublayer to sublayer; an inner product of n terms is wrong by n units
        of |x| |w| at most, and the matrices by as much as those of the model differ from the exact
        ones.

        Args:
            x: (N, d) tokens.
            reach: (N,) how far from them the ones that are meant may lie.
            error: (N,) of those in float32, a bound.

        Source: Higham 2002, section 3.1.
        """
        for layer, wrong in zip(self.layers, self._wrong, strict=True):
            dim, step = len(layer.b1), abs(float(layer.step))
            rotations = [rounding_of_sum(dim + 4) * math.sqrt(dim) + each for each in wrong]
            first = (1 + rotations[0]) * (1 + rotations[1]) - 1
            size, product = _norm(x, reach), x @ layer.mixed
            added = F.elu(product)
            inner = _elu(_norm(product, reach), error + first * (size + error), dim)
            error = _sum(size, error, step * _norm(added, reach), step * inner)
            x, reach = x + layer.step * added, reach * (1 + step)
            size, product = _norm(x, reach), x @ layer.w1 + layer.b1
            between = F.elu(product)
            inner = _elu(_norm(product, reach), error + rotations[2] * (size + error), dim)
            product = between @ layer.w2 + layer.b2
            added = F.elu(product)
            inner = inner + rotations[3] * (_norm(between, reach) + inner)
            inner = _elu(_norm(product, reach), inner, dim)
            error = _sum(size, error, step * _norm(added, reach), step * inner)
            x, reach = x + layer.step * added, reach * (1 + step)
        return _norm(x, reach), error

    def rounding(self, size: float, error: float, length: int) -> float:
        """How far a difference of logits in float32 lies from the exact one: a bound.

        Args:
            size: of an encoded token's norm, a bound.
            error: of the same in float32, a bound.
            length: number of tokens that are averaged, in whatever order they are summed.
        """
        return logits_rounding(self.exact.head, size, error, length)


def logits_rounding(head: nn.Linear, size: float, error: float, length: int) -> float:
    """`TokenwiseEncoder.rounding` for a head."""
    if isinstance(head, BoundedHead):
        return _bounded_rounding(head, size, error, length)
    weight, bias = head.weight, head.bias
    error = error + rounding_of_sum(length + 4) * (size + error)
    norms = weight.norm(dim=1)
    pairs = (weight[:, None] - weight).norm(dim=-1) * error
    sums = norms[:, None] + norms
    biases = bias.abs()[:, None] + bias.abs()
    each = pairs + rounding_of_sum(weight.shape[1] + 2) * sums * (size + error)
    return float((each + 2 * UNIT * biases).max())


def _bounded_rounding(head: BoundedHead, size: float, error: float, length: int) -> float:
    """`logits_rounding` where each token passes the head, is clipped, and then averaged."""
    inner = rounding_of_sum(head.in_features + 2) * (size + error)
    each = head.weight.norm(dim=1) * (error + inner) + UNIT * head.bound
    each = each + rounding_of_sum(length + 4) * (head.bound + each)
    each = each + 2 * UNIT * (head.bound + each + head.bias.abs())
    return float(2 * each.max())


def rounding_of_sum(terms: int) -> float:
    """Relative error of a sum of products with so many roundings to float32, in any order."""
    return terms * UNIT / (1 - terms * UNIT)


def _layer(layer: Any, encoder: Any) -> ExactLayer:
    (u,), (v,) = layer.experts.u.stacked(), layer.experts.v.stacked()
    w1, w2 = layer.ffn.w.stacked()
    eigenvalues = encoder.eigenvalues(u[None])[0]
    return ExactLayer(
        step=layer.step, mixed=(u * eigenvalues) @ v, w1=w1, b1=layer.ffn.b1, w2=w2, b2=layer.ffn.b2
    )


def matrices_of(layer: Any) -> list[Tensor]:
    """U, V, W1 and W2 in float64, as the layer has them."""
    stacks = layer.experts.u, layer.experts.v, layer.ffn.w
    return [matrix.cpu().double() for stack in stacks for matrix in stack.stacked()]


def _norm(x: Tensor, reach: Tensor) -> Tensor:
    """Norms (N,) of what lies within reach of x (N, d), at most."""
    return x.norm(dim=1) + reach


def _elu(size: Tensor, error: Tensor, dim: int) -> Tensor:
    """The error after an addition and an ELU, which itself enlarges no difference."""
    error = error + UNIT * (size + error)
    return error + ELU * (size + error + math.sqrt(dim))


def _sum(size: Tensor, error: Tensor, other: Tensor, wrong: Tensor) -> Tensor:
    """The error of x + s y, whose norms and errors are given."""
    return error + wrong + 8 * UNIT * (size + error + other + wrong)

"""TransJect backwards: from encoded tokens, eigenvalues and expert weights to the tokens.

With the eigenvalues and the expert weights of a forward pass held fixed, every sublayer is
x + (alpha / L) F(x) with Lip(F) <= 1, one token at a time. So it is injective, and the fixed-point
iteration x <- y - (alpha / L) F(x) finds the only x for a y.

Source: TJ section 4 (injectivity); Behrmann et al., "Invertible residual networks", 2019,
algorithm 1 (the iteration).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from models.transject import Encoder, Layer, TransJect

_MAX_ITERATIONS = 10_000
_PATIENCE = 10  # steps in a row that may fail to shrink, which only rounding makes them
_MAX_DISTANCES = 2**24  # held at once, 128 MiB in float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """What a forward pass leaves behind."""

    states: Tensor  # (B, N, d) encoded tokens
    eigenvalues: Tensor  # (B, d), scaled
    expert_weights: tuple[Tensor, ...]  # (B, E) of every layer


def encode(encoder: Encoder, x: Tensor, mask: Tensor | None = None) -> Encoding:
    """Encode embeddings (B, N, d) with a mask (B, N) and record what the inverse needs."""
    eigenvalues, recorded = encoder.eigenvalues(x, mask), []
    for layer in encoder.layers:
        x, weights = layer(x, eigenvalues, mask)
        recorded.append(weights)
    return Encoding(states=x, eigenvalues=eigenvalues, expert_weights=tuple(recorded))


@torch.no_grad()
def invert(encoder: Encoder, encoding: Encoding, *, tolerance: float = 1e-12) -> Tensor:
    """Find the embeddings that were encoded.

    Args:
        encoder: the encoder that encoded them; float64 for an exact answer.
        encoding: what `encode` returned.
        tolerance: largest change of an entry at which an iteration ends.

    Returns:
        (B, N, d), for padded tokens too.

    Raises:
        ValueError: the iteration does not end; a tolerance below the precision of the states, or
            an encoding that is not finite.
    """
    x = encoding.states
    layers = zip(encoder.layers, encoding.expert_weights, strict=True)
    for module, weights in reversed(list(layers)):
        layer = cast(Layer, module)
        x = _solve(lambda x, y, layer=layer: y - (layer.ffn(x, layer.step) - x), x, tolerance)

        def proposals(x: Tensor, y: Tensor, layer: Layer = layer, w: Tensor = weights) -> Tensor:
            """One step of the iteration through the experts."""
            outputs = layer.experts.outputs(x, encoding.eigenvalues, layer.step)
            return y - (torch.einsum("be,bend->bnd", w, outputs) - x)

        x = _solve(proposals, x, tolerance)
    return x


def recover_tokens(model: TransJect, encoding: Encoding, *, tolerance: float = 1e-12) -> Tensor:
    """Find the token ids that were encoded, (B, N), by the nearest row of the embedding.

    Args:
        model: the model that encoded them; float64 for an exact answer.
        encoding: what `encode` returned for `model.embed(tokens)`.
        tolerance: see `invert`.

    Raises:
        ValueError: see `invert`.
    """
    x = invert(model.encoder, encoding, tolerance=tolerance)
    table = model.embedding.weight
    rows = x[..., : table.shape[1]].flatten(0, 1).split(max(1, _MAX_DISTANCES // len(table)))
    return torch.cat([torch.cdist(part, table).argmin(-1) for part in rows]).view(x.shape[:2])


def _solve(step: Callable[[Tensor, Tensor], Tensor], y: Tensor, tolerance: float) -> Tensor:
    x, shortest, stalled = y, math.inf, 0
    for _ in range(_MAX_ITERATIONS):
        x, before = step(x, y), x
        change = x - before
        if change.abs().max() <= tolerance:
            return x
        length = float(change.norm(dim=-1).max())  # of a token's change: each step is a contraction
        if not math.isfinite(length):
            raise ValueError(f"encoding must be finite, got a change of {length} in a step back")
        stalled = 0 if length < shortest else stalled + 1
        if stalled == _PATIENCE:
            break
        shortest = min(length, shortest)
    raise ValueError(f"tolerance must be within reach of {y.dtype}, got {tolerance}")

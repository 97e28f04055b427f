"""Position-aware attention scaling: scores times a learned factor for each pair of positions.

Source: Mao et al., "Towards robust vision transformer", CVPR 2022 (RVT). The paper has
one matrix W of factors in the place of 1 / sqrt(D); the authors' code keeps 1 / sqrt(D) and has
sigmoid(W) with a W for each head, as here. The code leaves W as memory was; here it starts at 0.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from models.attention.aligned import check_length, required_length
from models.attention.base import ANYWHERE, Attention, AttentionOptions, Place
from models.attention.dot import DotAttention
from models.attention.elliptical import EllipticalAttention, EllipticalOptions
from models.attention.graphs import PlainAttention
from models.attention.metric import attention_weights
from models.layers.tracing import is_traced


class PositionScaled(Attention):
    """softmax(sigmoid(W) * Q K^T / sqrt(D)) V, with W (H, N, N) for exactly N tokens.

    For mechanisms whose weights are a softmax of q k^T / sqrt(D). Arguments as of `Attention`.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, *, options: Any = None, place: Place = ANYWHERE
    ) -> None:
        super().__init__(embed_dim, num_heads, options=options, place=place)
        self.length = required_length("position-scaled", place.length)
        self.att_mask = nn.Parameter(torch.zeros(num_heads, self.length, self.length))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        return self.weights(q, k, mask) @ v

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.weights`."""
        N = q.shape[2]
        if not is_traced() and N != self.length:
            check_length("position-scaled", N, self.length)
            raise ValueError(f"position-scaled attention needs {self.length} tokens, got {N}")
        return attention_weights(q, k, mask, factors=self.att_mask.sigmoid())

    def graph_form(self) -> nn.Module:
        """See `Attention.graph_form`."""
        form = cast(PlainAttention, super().graph_form())
        form.positions = self.att_mask
        return form


class PositionScaledDot(PositionScaled, DotAttention):
    """Dot-product attention with scaled scores."""


class PositionScaledElliptical(PositionScaled, EllipticalAttention):
    """Elliptical attention with scaled scores: m scales the columns of Q, W the scores [ours]."""


POSITION_SCALED: dict[str, type[PositionScaled]] = {
    "dot": PositionScaledDot,
    "elliptical": PositionScaledElliptical,
}
"""The form of each mechanism whose scores can be scaled."""


def position_scaled(name: str, options: AttentionOptions | None) -> type[PositionScaled]:
    """The class of a mechanism whose scores are scaled.

    Raises:
        ValueError: its weights are no softmax of q k^T / sqrt(D), or it estimates a metric from the
            gradient of attention without the factors.
    """
    if name not in POSITION_SCALED:
        raise ValueError(
            f"attention must be one of {', '.join(POSITION_SCALED)} in layers whose scores are "
            f"scaled by position, got {name!r}: name other layers in attention_layers, or lower "
            "scaled_layers"
        )
    if isinstance(options, EllipticalOptions) and options.estimator == "consistent":
        raise ValueError(
            "estimator must be difference or random in layers whose scores are scaled by position, "
            "got 'consistent', which is derived for scores as they are"
        )
    return POSITION_SCALED[name]

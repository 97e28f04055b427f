"""Dense Synthesizer: each token makes the weights of its row by itself, without keys.

Source: Tay et al., "Synthesizer: rethinking self-attention for transformer models", ICML 2021,
eq. 2 and 3, for each head, as in the code of Long Range Arena.
"""

import torch
from torch import Tensor, nn

from models.attention.aligned import (
    AlignedAttention,
    check_length,
    first_columns,
    required_length,
)
from models.attention.base import ANYWHERE, AttentionOptions, Place
from models.attention.metric import for_heads
from models.layers.tracing import is_traced


class SynthesizerAttention(AlignedAttention):
    """softmax(relu(X W1 + b1) W2 + b2) V, with W2 (D, N) of each head up to a fixed N.

    `qkv` holds W1 and the map to V. A sequence of n tokens uses the first n columns of W2 and b2.
    Arguments as of `Attention`.
    """

    maps = 2

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        options: AttentionOptions | None = None,
        place: Place = ANYWHERE,
    ) -> None:
        super().__init__(embed_dim, num_heads, place=place)
        self.length = required_length("synthesizer", place.length)
        head_dim = embed_dim // num_heads
        self.columns = nn.Parameter(torch.empty(num_heads, head_dim, self.length))
        self.bias = nn.Parameter(torch.zeros(num_heads, 1, self.length))
        nn.init.normal_(self.columns, std=head_dim**-0.5)

    def project(
        self, x: Tensor, v_prev: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The hidden units, twice, since there are no keys, and the values, (B, H, N, D) each."""
        heads = self.qkv(x).unflatten(2, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        hidden, v = heads.unbind(0)
        hidden = hidden.relu()
        return hidden, hidden, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        return self.weights(q, k, mask) @ v

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.weights`; of the hidden units alone."""
        N = k.shape[2]
        if not is_traced():
            check_length("synthesizer", N, self.length)
        scores = q @ first_columns(self.columns, N) + first_columns(self.bias, N)
        if mask is not None:
            scores = scores.masked_fill(~for_heads(mask), -torch.inf)
        return scores.softmax(-1)

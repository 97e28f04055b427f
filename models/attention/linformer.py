"""Linformer: keys and values are projected along the tokens, N to k, before they are attended to.

Source: Wang et al., "Linformer: self-attention with linear complexity", 2020, eq. 7; one projection
a head for keys and values alike, as in the LRA code of Xiong et al., AAAI 2021 (Nyströmformer).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from core.fields import check_between
from models.attention.aligned import (
    AlignedAttention,
    check_length,
    first_columns,
    required_length,
    without_padding,
)
from models.attention.base import ANYWHERE, AttentionOptions, Place
from models.attention.dot import attend
from models.layers.tracing import is_traced


@dataclass(frozen=True, slots=True, kw_only=True)
class LinformerOptions(AttentionOptions):
    """Options of Linformer; `rank` is k, the number of rows that keys and values become."""

    rank: int = 256

    def __post_init__(self) -> None:
        """Check every rule, naming the option and the value received."""
        AttentionOptions.__post_init__(self)
        check_between(self, 1, 2**13, "rank")


class LinformerAttention(AlignedAttention):
    """softmax(Q (E K)^T / sqrt(D)) E V with E (k, N) learned for each head, up to a fixed N.

    A sequence of n tokens uses the first n columns of E. Arguments as of `Attention`.
    """

    Options = LinformerOptions
    not_causal = "every key that it projects is a mixture of all tokens"
    no_map = "Linformer attends to projections of the keys, not to the keys"

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        options: LinformerOptions | None = None,
        place: Place = ANYWHERE,
    ) -> None:
        super().__init__(embed_dim, num_heads)
        rank = (options or LinformerOptions()).rank
        self.length = required_length("linformer", place.length)
        self.projection = nn.Parameter(torch.empty(num_heads, rank, self.length))
        nn.init.normal_(self.projection, std=0.02)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        B, H, N, D = k.shape
        if not is_traced():
            check_length("linformer", N, self.length)
        projection = first_columns(self.projection, N)
        # One product a head for all samples: the gradient of E is then one product, too.
        both = torch.stack([without_padding(each, mask) for each in (k, v)])
        both = projection @ both.permute(2, 3, 0, 1, 4).reshape(H, N, 2 * B * D)
        rows = both.unflatten(2, (2, B, D)).permute(2, 3, 0, 1, 4)  # (2, B, H, k, D)
        return attend(q, *rows.unbind(0))

"""Median of means: each query attends to one block of the keys, the one of median density.

Source: Han et al., "Designing robust transformers using robust kernel density estimation", NeurIPS
2023 (RKDE), after Humbert et al., "Robust kernel density estimation with median-of-means
principle", ICML 2022.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from core.fields import check_between
from models.attention.base import ANYWHERE, Place
from models.attention.kde import KdeAttention, KdeOptions
from models.attention.metric import for_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class MomOptions(KdeOptions):
    """Options of the median of means, besides those of `KdeOptions`.

    Attributes:
        blocks: number of blocks. Outliers in fewer than half of them cannot move the median.
    """

    blocks: int = 3

    def __post_init__(self) -> None:
        """Check every rule, naming the option and the value received."""
        KdeOptions.__post_init__(self)
        check_between(self, 1, 1000, "blocks")


class MomAttention(KdeAttention):
    """Kernel regression over the block whose density at the query is the median.

    The t-th real token belongs to the block t mod `blocks`; a sequence of fewer tokens has one
    block a token. The density of a block is the mean of the kernel over its keys, and of an even
    number of blocks the larger of the two in the middle counts. One block gives `KdeAttention`.
    The answer jumps where two blocks are equally dense. Arguments as of `Attention`.

    Source: RKDE, its form with medians of means. The authors' code draws overlapping blocks of 95 %
        of the keys afresh for every batch, and takes one for all queries, heads and samples.
    """

    Options = MomOptions

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        options: MomOptions | None = None,
        place: Place = ANYWHERE,
    ) -> None:
        options = options or MomOptions()
        super().__init__(embed_dim, num_heads, options=options, place=place)
        self.blocks = options.blocks

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        return self.weights(q, k, mask) @ v

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.weights`."""
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        if mask is None:
            mask = torch.ones(1, k.shape[2], dtype=torch.bool, device=q.device)
        real = mask if mask.dim() == 2 else mask[:, -1]  # the last token of a causal layer sees all
        block = ((real.cumsum(1) - 1) % self.blocks)[:, None, None]
        block = block.masked_fill(~for_heads(mask), -1)
        chosen = self.median(scores.detach(), block)
        return scores.masked_fill(block != chosen, -torch.inf).softmax(-1)

    def median(self, scores: Tensor, block: Tensor) -> Tensor:
        """The block (B, H, N, 1) of median density of scores (B, H, N, N).

        `block` (B or 1, 1, 1 or N, N) is the number of each key's block, -1 where none is seen.
        """
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        densities, sizes = [], []
        for number in range(self.blocks):
            inside = block == number
            size = inside.sum(-1)  # (B, 1, 1 or N)
            total = scores.masked_fill(~inside, -torch.inf).logsumexp(-1)
            densities.append(total - size.clamp_min(1).to(scores.dtype).log())
            sizes.append(size)
        order = torch.stack(densities, dim=-1).sort(dim=-1).indices  # empty blocks come first
        empty = (torch.stack(sizes, dim=-1) == 0).sum(-1, keepdim=True)  # (B, 1, 1 or N, 1)
        middle = empty + (self.blocks - empty) // 2
        return order.gather(-1, middle.expand(*order.shape[:-1], 1))

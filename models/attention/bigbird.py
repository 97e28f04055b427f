"""BigBird: blocks of tokens that see their neighbors, the two ends of a sequence and random blocks.

Source: Zaheer et al., "Big Bird: transformers for longer sequences", NeurIPS 2020, section 2 and
appendix D.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from core.fields import check_between
from models.attention.aligned import (
    AlignedAttention,
    check_length,
    first_columns,
    real_lengths,
    required_length,
    weights_by_values,
)
from models.attention.base import ANYWHERE, MOST_SEED, AttentionOptions, Place
from models.attention.dot import attend
from models.layers.tracing import is_traced


@dataclass(frozen=True, slots=True, kw_only=True)
class BigBirdOptions(AttentionOptions):
    """Options of BigBird.

    Attributes:
        block: how many tokens a block has.
        random_blocks: how many blocks a block sees besides its neighbors and both ends.
        seed: of the random blocks, which are drawn once, others in every layer.
    """

    block: int = 64
    random_blocks: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every rule, naming the option and the value received."""
        AttentionOptions.__post_init__(self)
        check_between(self, 1, 2**16, "block")
        check_between(self, 0, 32, "random_blocks")
        check_between(self, 0, MOST_SEED, "seed")


class BigBirdAttention(AlignedAttention):
    """Softmax attention of each block to itself, the blocks beside it, both ends and random blocks.

    The first and the last block of the real tokens see all and are seen by all. The random blocks
    of a block are distinct ones of those that it does not see otherwise, by numbers drawn once for
    each head and block. A sequence with no more than 4 + random_blocks blocks is seen whole by
    every token. Arguments as of `Attention`.
    """

    Options = BigBirdOptions
    not_causal = "its blocks of tokens attend to whole blocks, which hold later tokens"
    draws: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        options: BigBirdOptions | None = None,
        place: Place = ANYWHERE,
    ) -> None:
        super().__init__(embed_dim, num_heads)
        options = options or BigBirdOptions()
        self.block, self.random_blocks = options.block, options.random_blocks
        self.length = required_length("bigbird", place.length)
        generator = torch.Generator("cpu").manual_seed(place.seed(options.seed))
        # One column more than blocks, see `attend`.
        shape = (options.random_blocks, num_heads, -(-self.length // options.block) + 1)
        draws = torch.randint(2**31, shape, generator=generator, device="cpu")
        self.register_buffer("draws", draws, persistent=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        N, size = q.shape[2], self.block
        if not is_traced():
            check_length("bigbird", N, self.length)
            if N <= (4 + self.random_blocks) * size:
                return attend(q, k, v, mask)
        # In a graph one block more than needed: a single one would be another shape to torch.
        own = torch.arange((N + size - 1) // size + int(is_traced()), device=q.device)
        tokens = (own[:, None] * size + torch.arange(size, device=q.device)).clamp(max=N - 1)
        queries, keys, values = (x[:, :, tokens] for x in (q, k, v))  # (B, H, blocks, size, D)
        lengths = real_lengths(q, mask)
        last = ((lengths - 1) // size)[:, None]  # (B, 1, 1)
        inner = self._inner(queries, keys, values, self._seen(own, last), lengths)
        ends = torch.cat((torch.zeros_like(last), last), dim=2)[:, :, None]  # (B, 1, 1, 2)
        of_ends = blocks_at(queries, ends.expand(-1, q.shape[1], -1, -1))[:, :, 0]
        of_first, of_last = attend(of_ends, k, v, mask).chunk(2, dim=2)  # (B, H, size, D) each
        is_last = (own == last)[..., None, None]
        attended = torch.where(is_last, of_last[:, :, None], inner)
        attended = torch.where(own[:, None, None] == 0, of_first[:, :, None], attended)
        return attended.flatten(2, 3).index_select(2, torch.arange(N, device=q.device))

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.weights`."""
        return weights_by_values(self, q, k, mask)

    def _inner(
        self, queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, lengths: Tensor
    ) -> Tensor:
        """What blocks (B, H, blocks, size, D) draw from the blocks that they see, of `_seen`."""
        size, D = queries.shape[3:]
        real = seen[..., None] * size + torch.arange(size, device=seen.device)
        real = (seen >= 0)[..., None] & (real < lengths[:, :, None, None, None])
        seen = seen.clamp_min(0)
        scores = queries @ blocks_at(keys, seen).transpose(-1, -2) * D**-0.5
        scores = scores.masked_fill(~real.flatten(3)[..., None, :], -torch.inf)
        return scores.softmax(-1).to(values.dtype) @ blocks_at(values, seen)

    def _seen(self, own: Tensor, last: Tensor) -> Tensor:
        """The distinct blocks (B, H, blocks, S) that inner blocks see, -1 in the place of none.

        `own` (blocks,) are their numbers, `last` (B, 1, 1) the number of the last block.
        """
        before = (own - 2).clamp_min(0)  # how many are not seen otherwise, here and after
        count = before + (last - 2 - own).clamp_min(0)  # (B, 1, blocks)
        picks: list[Tensor] = []
        draws = first_columns(self.draws, own.shape[0])  # (r, H, blocks)
        for step, draw in enumerate(draws.unbind(0)):  # Floyd's way to draw a set
            top = count - self.random_blocks + step
            pick = draw % (top + 1).clamp_min(1)
            for other in picks[:step]:
                pick = torch.where(pick == other, top, pick)
            picks.append(torch.where(top < 0, -1, pick))
        skipped = [torch.where(pick < before, pick + 1, pick - before + own + 2) for pick in picks]
        chosen = [torch.where(p < 0, -1, s) for p, s in zip(picks, skipped, strict=True)]
        ahead, behind = torch.where(own == 1, -1, own - 1), torch.where(own + 1 < last, own + 1, -1)
        everywhere = torch.zeros_like(count), last, own, ahead, behind
        shape = (last.shape[0], self.num_heads, own.shape[0])
        return torch.stack([slot.expand(shape) for slot in (*everywhere, *chosen)], dim=-1)


def blocks_at(x: Tensor, places: Tensor) -> Tensor:
    """The blocks (B, H, R, S size, D) of (B, H, blocks, size, D) at places (B, H, R, S)."""
    B, H = (torch.arange(count, device=x.device) for count in x.shape[:2])
    return x[B[:, None, None, None], H[:, None, None], places].flatten(3, 4)

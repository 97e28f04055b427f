"""Reformer: tokens attend to those of like direction, found by hashing, sorting and chunks.

Source: Kitaev et al., "Reformer: the efficient transformer", ICLR 2020, section 2 and appendix A.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from core.fields import check_between
from models.attention.aligned import (
    AlignedAttention,
    check_length,
    real_lengths,
    required_length,
    weights_by_values,
)
from models.attention.base import ANYWHERE, MOST_SEED, AttentionOptions, Place
from models.layers.tracing import is_traced

_ALONE = -1e5
"""The score of a token's own key: it counts only where a token sees no other [paper]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReformerOptions(AttentionOptions):
    """Options of Reformer.

    Attributes:
        hashes: number of rounds, each with rotations and an order of its own.
        chunk: how many tokens a chunk has; n tokens have 2 n / chunk buckets, rounded up to an even
            number, so that a bucket has half a chunk on average.
        seed: of the rotations, which are drawn once, others in every layer.
    """

    hashes: int = 2
    chunk: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every rule, naming the option and the value received."""
        AttentionOptions.__post_init__(self)
        check_between(self, 1, 64, "hashes")
        check_between(self, 1, 2**16, "chunk")
        check_between(self, 0, MOST_SEED, "seed")


class ReformerAttention(AlignedAttention):
    """Softmax over the tokens that share a chunk, or the one before, in any round of hashing.

    Queries are keys: k = q / |q|. The bucket of a token is the largest of q R and -q R; the real
    tokens are sorted by bucket and place and cut into chunks. A token seen in several rounds counts
    once. Of the maps there are two, of queries and of values. Arguments as of `Attention`.

    Source: Kitaev et al. 2020, eq. 2 to 6 and 11 to 16. Buckets sort only, as in public code; eq. 4
        would leave out the chunks' tokens of other buckets. Public code lets the first chunk see
        the last, which eq. 5 does not; all heads share the rotations.
    """

    Options = ReformerOptions
    not_causal = "it sorts all tokens into chunks by their hashes"
    maps = 2
    rotations: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        options: ReformerOptions | None = None,
        place: Place = ANYWHERE,
    ) -> None:
        super().__init__(embed_dim, num_heads)
        options = options or ReformerOptions()
        self.chunk = options.chunk
        self.length = required_length("reformer", place.length)
        generator = torch.Generator("cpu").manual_seed(place.seed(options.seed))
        shape = (options.hashes, embed_dim // num_heads, -(-self.length // options.chunk))
        rotations = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        self.register_buffer("rotations", rotations.to(torch.get_default_dtype()))

    def project(
        self, x: Tensor, v_prev: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Attention.project`; the keys are the queries, of length 1."""
        B, N, C = x.shape
        heads = self.qkv(x).view(B, N, 2, self.num_heads, C // self.num_heads)
        q, v = heads.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, num_heads, N, head_dim)
        return q, F.normalize(q, dim=-1).to(q.dtype), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        N, D = q.shape[2:]
        if not is_traced():
            check_length("reformer", N, self.length)
        lengths = real_lengths(q, mask)
        size, more = (self.chunk, 1) if is_traced() else (min(self.chunk, N), 0)
        ranks = self._ranks(q.detach(), lengths)  # (B, H, R, N)
        numbers = torch.arange(N, device=q.device).expand_as(ranks)
        order = torch.zeros_like(ranks).scatter(3, ranks, numbers)
        # In a graph one chunk more than needed: a single one would be another shape to torch.
        starts = torch.arange((N + size - 1) // size + more, device=q.device)[:, None] * size
        near = starts + torch.arange(2 * size, device=q.device) - size  # (chunks, 2 size)
        own = starts + torch.arange(size, device=q.device)
        seen = (near >= 0) & (near < lengths[:, :, None])  # (B, chunks, 2 size)
        keys = order[..., near.clamp(0, N - 1)]  # (B, H, R, chunks, 2 size)
        queries = order[..., own.clamp(max=N - 1)]
        scores = rows(q, queries) @ rows(k, keys).transpose(-1, -2) * D**-0.5
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        scores = scores.masked_fill(queries[..., None] == keys[..., None, :], _ALONE)
        scores = scores - self._rounds(ranks // size, queries, keys).to(scores.dtype).log()
        lowest = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(~seen[:, None, None, :, None], lowest)
        total = scores.logsumexp(-1).flatten(3).gather(3, ranks)  # (B, H, R, N)
        attended = (scores.softmax(-1).to(v.dtype) @ rows(v, keys)).flatten(3, 4)
        attended = attended.gather(3, ranks[..., None].expand(*ranks.shape, v.shape[3]))
        return (total.softmax(2).to(v.dtype)[..., None] * attended).sum(2)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.weights`."""
        return weights_by_values(self, q, k, mask)

    def _ranks(self, q: Tensor, lengths: Tensor) -> Tensor:
        """The place (B, H, R, N) of each token when they are sorted by bucket, then by place."""
        N, columns = q.shape[2], self.rotations.shape[2]
        rotated = q[:, :, None].to(self.rotations.dtype) @ self.rotations  # (B, H, R, N, columns)
        numbers = torch.arange(columns, device=q.device)
        used = (numbers * self.chunk < lengths)[:, None, None, None]  # (B, 1, 1, 1, columns)
        sides = torch.cat((rotated, -rotated), dim=-1)
        sides = sides.masked_fill(~torch.cat((used, used), dim=-1), -torch.inf)
        places = torch.arange(N, device=q.device)
        padding = (places >= lengths)[:, None, None]
        buckets = sides.argmax(-1).masked_fill(padding, 2 * columns)
        order = (buckets * N + places).argsort(-1)
        return torch.zeros_like(order).scatter(3, order, places.expand_as(order))

    def _rounds(self, chunks: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        """In how many rounds a query sees a key, at least 1: (B, H, R, chunks, size, 2 size).

        `chunks` (B, H, R, N) are the numbers of the tokens' chunks in every round.
        """
        count = torch.zeros_like(queries[..., None] + keys[..., None, :])
        for chunk in chunks.unbind(2):  # (B, H, N)
            of_query, of_key = (rows(chunk[..., None], each)[..., 0] for each in (queries, keys))
            before = of_query[..., None] - of_key[..., None, :]
            count = count + ((before >= 0) & (before <= 1))
        return count.clamp_min(1)


def rows(x: Tensor, places: Tensor) -> Tensor:
    """The rows (B, H, R, C, K, D) of (B, H, N, D) at places (B, H, R, C, K)."""
    B, H = (torch.arange(count, device=x.device) for count in x.shape[:2])
    return x[B[:, None, None, None, None], H[:, None, None, None], places]

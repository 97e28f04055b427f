"""Longformer: a sliding window, and a first token that sees all and that all see.

Source: Beltagy et al., "Longformer: the long-document transformer", 2020, section 3.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.fields import check_between
from models.attention.aligned import AlignedAttention
from models.attention.base import ANYWHERE, AttentionOptions, Cache, Place, joined
from models.attention.dot import attend
from models.attention.metric import attention_weights
from models.layers.tracing import is_traced


@dataclass(frozen=True, slots=True, kw_only=True)
class LongformerOptions(AttentionOptions):
    """Options of Longformer; a token sees half of the `window`, an even number, on each side.

    In a language model it sees as many tokens as both halves before it.
    """

    window: int = 512

    def __post_init__(self) -> None:
        """Check every rule, naming the option and the value received."""
        AttentionOptions.__post_init__(self)
        check_between(self, 2, 2**16, "window")
        if self.window % 2:
            raise ValueError(f"window must be even, got {self.window}")


class LongformerAttention(AlignedAttention):
    """Softmax attention of each token to its window and to the first real token.

    The first token attends to all by maps of its own (`qkv_global`). A sequence shorter than half
    the window is seen whole by every token. In a causal layer the first token has no maps of its
    own, since it sees itself alone. Arguments as of `Attention`.
    """

    Options = LongformerOptions

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        options: LongformerOptions | None = None,
        place: Place = ANYWHERE,
    ) -> None:
        super().__init__(embed_dim, num_heads, place=place)
        window = (options or LongformerOptions()).window
        self.reach = window if self.causal else window // 2
        self.qkv_global = None if self.causal else nn.Linear(embed_dim, 3 * embed_dim)

    def project(
        self, x: Tensor, v_prev: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, (B, H, N, 2 D) each: those of the window, then those of the first token."""
        if self.qkv_global is None:
            return super().project(x, v_prev, mask)
        pairs = zip(self.split(self.qkv(x)), self.split(self.qkv_global(x)), strict=True)
        q, k, v = (torch.cat(pair, dim=-1) for pair in pairs)
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        if self.causal:
            return self._windows(q, k, v, None)
        (q, q_all), (k, k_all), (v, v_all) = (each.chunk(2, dim=-1) for each in (q, k, v))
        first = attend(q_all[:, :, :1], k_all, v_all, mask)
        is_first = torch.arange(q.shape[2], device=q.device)[:, None] == 0
        return torch.where(is_first, first, self._windows(q, k, v, mask))

    def attend_next(self, q: Tensor, k: Tensor, v: Tensor, cache: Cache) -> Tensor:
        """See `Attention.attend_next`."""
        k, v = joined(cache, "k", k, dim=-2), joined(cache, "v", v, dim=-2)
        places = torch.arange(k.shape[2], device=q.device)
        near = self._near(places[-q.shape[2] :, None], places) | (places == 0)
        return attend(q, k, v, near[None])

    def _windows(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """What each token draws from its window and from the first token, (B, H, N, D)."""
        B, N = q.shape[0], q.shape[2]
        size, more = (self.reach, 1) if is_traced() else (min(self.reach, N), 0)
        # In a graph one chunk more than needed: a single one would be another shape to torch.
        count = (N + size - 1) // size + more
        starts = torch.arange(count, device=q.device)[:, None] * size
        near = torch.arange((2 if self.causal else 3) * size, device=q.device) - size
        within = torch.arange(size, device=q.device)
        keys, queries = starts + near, starts + within  # (chunks, 2 or 3 size), (chunks, size)
        seen = (keys > 0) & (keys < N)  # the first token has a column of its own
        keys, queries = F.pad(keys.clamp(0, N - 1), (1, 0)), queries.clamp(max=N - 1)
        seen = seen.expand(B, -1, -1) if mask is None else seen & mask[:, keys[:, 1:]]
        seen = seen[..., None, :] & self._near(within[:, None], near)
        seen = F.pad(seen, (1, 0), value=True).flatten(0, 1)  # (B chunks, size, 1 + keys)
        parts = rows(q, queries), rows(k, keys), rows(v, keys)
        attended = attend(*parts, seen).transpose(1, 2).unflatten(0, (B, count)).flatten(1, 2)
        return attended.index_select(1, torch.arange(N, device=q.device)).transpose(1, 2)

    def _near(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether a key's place is in the window of a query's."""
        near = (query - key).abs() <= self.reach
        return near & (key <= query) if self.causal else near

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.weights`; the first token's row is of other values."""
        places = torch.arange(q.shape[2], device=q.device)
        near = self._near(places[:, None], places) | (places == 0)
        if self.causal:
            return attention_weights(q, k, near[None])
        (q, q_all), (k, k_all) = (each.chunk(2, dim=-1) for each in (q, k))
        scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~near, -torch.inf)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
        first = attention_weights(q_all[:, :, :1], k_all, mask)
        return torch.cat((first, scores.softmax(-1)[:, :, 1:]), dim=2)


def rows(x: Tensor, places: Tensor) -> Tensor:
    """The rows (B chunks, H, K, D) of (B, H, N, D) at places (chunks, K)."""
    return x.transpose(1, 2)[:, places].flatten(0, 1).transpose(1, 2)

"""Informer: queries that tell keys apart attend, the others take the mean of the values.

Source: Zhou et al., "Informer: beyond efficient transformer for long sequence time-series
forecasting", AAAI 2021, section "Efficient self-attention mechanism" (ProbSparse).
"""

import math
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
    without_padding,
)
from models.attention.base import ANYWHERE, MOST_SEED, AttentionOptions, Place
from models.attention.dot import attend
from models.layers.tracing import is_traced


@dataclass(frozen=True, slots=True, kw_only=True)
class InformerOptions(AttentionOptions):
    """Options of Informer.

    Attributes:
        factor: of n tokens, factor * ln n (rounded up) queries attend, and each is measured with as
            many sampled keys.
        seed: of the samples, which are drawn once, another time in every layer.
    """

    factor: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every rule, naming the option and the value received."""
        AttentionOptions.__post_init__(self)
        check_between(self, 1, 1000, "factor")
        check_between(self, 0, MOST_SEED, "seed")


class InformerAttention(AlignedAttention):
    """softmax(Q K^T / sqrt(D)) V for the queries of largest measure, the mean of V for the others.

    The measure of a query is the largest of its scores less their mean, over keys sampled with
    repetition: numbers drawn once, modulo the sample's real length. A sequence with no more tokens
    than `informer_count` says has exact softmax attention. Arguments as of `Attention`.

    Source: Zhou et al. 2021, eq. 4 and algorithm 1. The authors' code divides the sum over the
        samples by the number of all keys; here it is their mean, as in the paper.
    """

    Options = InformerOptions
    not_causal = "it compares all tokens to choose those that attend"
    samples: Tensor
    counts: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        options: InformerOptions | None = None,
        place: Place = ANYWHERE,
    ) -> None:
        super().__init__(embed_dim, num_heads)
        options = options or InformerOptions()
        self.factor = options.factor
        self.length = required_length("informer", place.length)
        counts = [informer_count(n, self.factor) for n in range(self.length + 1)]
        self.most = counts[-1]
        generator = torch.Generator("cpu").manual_seed(place.seed(options.seed))
        samples = torch.randint(2**31, (self.most, self.length), generator=generator, device="cpu")
        self.register_buffer("samples", samples, persistent=False)
        self.register_buffer("counts", torch.tensor(counts, device="cpu"), persistent=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        if not is_traced():
            check_length("informer", q.shape[2], self.length)
        N, D, lengths = q.shape[2], q.shape[3], real_lengths(q, mask)
        mean = without_padding(v, mask).sum(2, keepdim=True) / lengths[:, :, None, None]
        rows = self._chosen(
            q.detach(), k.detach(), mask, lengths
        )  # (B, H, u), N where there is none
        queries = q.gather(2, rows.clamp(max=N - 1)[..., None].expand(-1, -1, -1, D))
        attended = attend(queries, k, v, mask).to(v.dtype)
        # What stands for no query goes to a row behind the last.
        out = mean.to(v.dtype).expand(-1, -1, N + 1, -1)
        out = out.scatter(2, rows[..., None].expand_as(attended), attended)
        return out.index_select(2, torch.arange(N, device=q.device))

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.weights`; the rows of queries that do not attend are equal weights."""
        return weights_by_values(self, q, k, mask)

    def _chosen(self, q: Tensor, k: Tensor, mask: Tensor | None, lengths: Tensor) -> Tensor:
        """The places (B, H, u) of the queries that attend, N where a sample has fewer."""
        N = q.shape[2]
        most = self.most if is_traced() else informer_count(N, self.factor)
        numbers = torch.arange(most, device=q.device)
        used = numbers < self.counts[lengths]  # (B, u)
        measure = self._measure(q, k, lengths, used)
        if mask is not None:
            measure = measure.masked_fill(~mask[:, None], -torch.inf)
        nothing = measure.new_full((1,), -torch.inf).expand(*measure.shape[:2], most)
        rows = torch.cat((measure, nothing), dim=2).topk(most, dim=2).indices
        return torch.where(used[:, None], rows, N)

    def _measure(self, q: Tensor, k: Tensor, lengths: Tensor, used: Tensor) -> Tensor:
        """The largest score less the mean, (B, H, N), over as many samples as are `used`."""
        samples = first_columns(self.samples, q.shape[2])[: used.shape[1]].transpose(0, 1)
        places = (samples % lengths[:, :, None])[:, None].flatten(2)  # (B, 1, N u)
        heads = torch.arange(k.shape[0] * k.shape[1], device=k.device).view(*k.shape[:2], 1)
        # Of one long list of keys, which takes half the time that a gather from each head does.
        keys = k.flatten(0, 2).index_select(0, (places + heads * k.shape[2]).flatten())
        keys = keys.view(*k.shape[:3], -1, k.shape[3])  # (B, H, N, u, D)
        scores = torch.einsum("bhnud,bhnd->bhnu", keys, q)
        used = used[:, None, None]
        mean = (scores * used).sum(-1) / used.sum(-1)
        return scores.masked_fill(~used, -torch.inf).amax(-1) - mean


def informer_count(length: int, factor: int) -> int:
    """How many queries of so many tokens attend: factor * ln n, n at most and 1 at least."""
    return min(max(factor * math.ceil(math.log(max(length, 1))), 1), max(length, 1))

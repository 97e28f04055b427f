"""Skyformer: a Gaussian kernel in the place of softmax, by way of sampled queries and keys.

Source: Chen et al., "Skyformer: remodel self-attention with Gaussian kernel and Nyström method",
NeurIPS 2021.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from core.fields import check_between, check_positive
from models.attention.aligned import (
    AlignedAttention,
    check_length,
    first_columns,
    real_lengths,
    required_length,
    without_padding,
)
from models.attention.base import ANYWHERE, MOST_SEED, AttentionOptions, Place
from models.layers.tracing import full_precision, is_traced


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyformerOptions(AttentionOptions):
    """Options of Skyformer.

    Attributes:
        landmarks: how many of the queries and keys stand for all.
        gamma: what is added to the diagonal of the landmarks' kernel before it is inverted.
        steps: of the iteration for the inverse.
        seed: of the order in which places are sampled, another in every layer.
    """

    landmarks: int = 128
    gamma: float = 1e-3
    steps: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every rule, naming the option and the value received."""
        AttentionOptions.__post_init__(self)
        check_between(self, 1, 2**12, "landmarks")
        check_between(self, 1, 100, "steps")
        check_positive(self, "gamma")
        check_between(self, 0, MOST_SEED, "seed")


class SkyformerAttention(AlignedAttention):
    """K(Q, W) (K(W, W) + gamma I)^-1 K(W, K) V with K(a, b) = exp(-|a - b|^2 / 2 sqrt(D)).

    The landmarks W are rows of [Q; K] without repetition: the first real ones in an order of places
    that is drawn once, up to a fixed N. A sequence with no more rows than landmarks uses all. Rows
    are not divided by their sum. Arguments as of `Attention`.

    Source: Chen et al. 2021, eq. 4 and section 4; gamma is ours.
    """

    Options = SkyformerOptions
    not_causal = "its landmarks are sampled from all tokens"
    no_map = "Skyformer compares queries and keys with landmarks, not with each other"
    order: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        options: SkyformerOptions | None = None,
        place: Place = ANYWHERE,
    ) -> None:
        super().__init__(embed_dim, num_heads)
        options = options or SkyformerOptions()
        self.landmarks, self.gamma, self.steps = options.landmarks, options.gamma, options.steps
        self.length = required_length("skyformer", place.length)
        generator = torch.Generator("cpu").manual_seed(place.seed(options.seed))
        order = torch.randperm(2 * self.length, generator=generator, device="cpu")
        self.register_buffer("order", order.view(2, self.length), persistent=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        if not is_traced():
            check_length("skyformer", q.shape[2], self.length)
        dtype = torch.promote_types(q.dtype, torch.float32)
        with full_precision(q):
            q, k = (each.to(dtype) * each.shape[-1] ** -0.25 for each in (q, k))
            rows, used = self._sampled(q, mask)
            w = torch.cat((q, k), dim=2).gather(2, rows.expand(-1, q.shape[1], -1, q.shape[3]))
            w_k = gaussian(w, k) * used
            gathered = w_k @ without_padding(v, mask).to(dtype)
            one = torch.eye(self.landmarks, dtype=dtype, device=q.device)
            both = used * used.transpose(2, 3)
            # Landmarks that are not used stand apart, with a one on the diagonal.
            between = gaussian(w, w) * both + (self.gamma * used + 1 - used) * one
            given = inverse(between, self.steps) @ gathered
            return (gaussian(q, w) @ (given * used)).to(v.dtype)

    def _sampled(self, q: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Rows (B, 1, m, 1) of [Q; K] and ones where they are landmarks, else zeros."""
        B, N, most = q.shape[0], q.shape[2], 2 * self.length
        order = first_columns(self.order, N).flatten().expand(B, -1)  # (B, 2 N)
        if mask is not None:
            order = order.masked_fill(~mask.repeat(1, 2), most)
        order = torch.cat((order, order.new_full((B, self.landmarks), most)), dim=1)
        rows = order.topk(self.landmarks, dim=1, largest=False).indices.clamp(max=2 * N - 1)
        numbers = torch.arange(self.landmarks, device=q.device)
        used = (numbers < 2 * real_lengths(q, mask)).to(q.dtype)
        return rows[:, None, :, None], used[:, None, :, None]


def gaussian(a: Tensor, b: Tensor) -> Tensor:
    """exp(-|a_i - b_j|^2 / 2): (..., N, D) and (..., M, D) to (..., N, M)."""
    norms = a.square().sum(-1, keepdim=True) + b.square().sum(-1)[..., None, :]
    return (a @ b.transpose(-1, -2) - norms / 2).clamp(max=0.0).exp()


def inverse(a: Tensor, steps: int) -> Tensor:
    """The inverse of symmetric positive matrices (..., m, m) without negative entries, nearly.

    Source: Chen et al. 2021, section 4.3: rows and columns divided by the roots of the row sums,
        which leaves eigenvalues in (0, 1], then the iteration of Razavi et al. 2014 from one.
    """
    scale = a.sum(-1, keepdim=True).rsqrt()
    a = a * scale * scale.transpose(-1, -2)
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    z = one
    for _ in range(steps):
        az = a @ z
        z = 0.25 * z @ (13 * one - az @ (15 * one - az @ (7 * one - az)))
    return z * scale * scale.transpose(-1, -2)

"""Mixture of Gaussian keys: every token offers several keys, each with a width of its own.

Source: Nguyen et al., "Improving transformers with probabilistic attention keys", ICML 2022 (MGK).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from core.fields import check_between
from models.attention.base import ANYWHERE, Attention, AttentionOptions, Place
from models.attention.metric import for_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class MgkOptions(AttentionOptions):
    """Options of the mixture of Gaussian keys.

    Attributes:
        sets: number of keys that each token has in a head.
    """

    sets: int = 2

    def __post_init__(self) -> None:
        """Check every rule, naming the option and the value received."""
        AttentionOptions.__post_init__(self)
        check_between(self, 1, 64, "sets")


class MgkAttention(Attention):
    """Weights sum_r pi_r exp(-|q - k_r|^2 / 2 sigma_r^2), over their sum for all keys.

    `keys` makes the key sets after the first. Each head learns pi, the softmax of `mixture`, and
    sigma^2 = exp(`log_widths`) sqrt(D), which start equal and at (2 r - 1) sqrt(D), r = 1, 2, ...
    Arguments as of `Attention`.

    Source: MGK, the exact E-step. What pi and sigma start from is ours.
    """

    Options = MgkOptions

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        options: MgkOptions | None = None,
        place: Place = ANYWHERE,
    ) -> None:
        super().__init__(embed_dim, num_heads, place=place)
        self.sets = sets = (options or MgkOptions()).sets
        self.keys = nn.Linear(embed_dim, (sets - 1) * embed_dim) if sets > 1 else None
        self.mixture = nn.Parameter(torch.zeros(num_heads, sets))
        widths = torch.arange(1.0, 2 * sets, 2).log()
        self.log_widths = nn.Parameter(widths.expand(num_heads, -1).clone())

    def project(
        self, x: Tensor, v_prev: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Attention.project`; the keys are (B, H, sets, N, D)."""
        q, k, v = super().project(x, v_prev, mask)
        k = k[:, :, None]
        if self.keys is not None:
            B, N, _ = x.shape
            more = self.keys(x).view(B, N, self.sets - 1, self.num_heads, -1)
            k = torch.cat((k, more.permute(0, 3, 2, 1, 4)), dim=2)
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        return self.weights(q, k, mask) @ v

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.weights`; the keys are (B, H, sets, N, D)."""
        q = q[:, :, None]
        products = q @ k.transpose(-2, -1)  # (B, H, sets, N, N)
        dtype = torch.promote_types(products.dtype, torch.float32)
        lengths = (each.to(dtype).square().sum(-1) for each in (q, k))
        queries, keys = lengths
        apart = queries[..., None] + keys[..., None, :] - 2 * products.to(dtype)
        rates = (-self.log_widths.to(dtype)).exp() * (-0.5 * q.shape[-1] ** -0.5)
        logs = apart * rates[:, :, None, None]
        logs = logs + self.mixture.to(dtype).log_softmax(-1)[:, :, None, None]
        scores = logs.logsumexp(2) if self.sets > 1 else logs[:, :, 0]
        if mask is not None:
            scores = scores.masked_fill(~for_heads(mask), -torch.inf)
        return scores.softmax(-1)

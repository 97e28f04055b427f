"""Attention as kernel regression: weights from the density of the keys around a query.

Source: Han et al., "Designing robust transformers using robust kernel density estimation", NeurIPS
2023 (RKDE).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.fields import check_positive
from models.attention.base import ANYWHERE, AttentionOptions, Place
from models.attention.dot import DotAttention
from models.layers.tracing import full_precision, is_traced


@dataclass(frozen=True, slots=True, kw_only=True)
class KdeOptions(AttentionOptions):
    """Options of kernel regression.

    Attributes:
        width: sigma^2 of the kernel, in units of sqrt(D), > 0. With 1, as in the paper, it is
            dot-product attention with keys of length 1; the authors' code has 0.5.
    """

    width: float = 1.0

    def __post_init__(self) -> None:
        """Check every rule, naming the option and the value received."""
        AttentionOptions.__post_init__(self)
        check_positive(self, "width")


class KdeAttention(DotAttention):
    """Weights exp(-|q - k|^2 / 2 sigma^2) over their sum, with keys of length 1.

    Since all keys are equally long, |q - k|^2 is a number of the query less 2 q k, which the
    softmax takes away: the fused kernel does it. A key of zero counts as one at right angles to
    every query. Arguments as of `Attention`.

    Source: RKDE, its form of attention as kernel regression.
    """

    Options = KdeOptions

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        options: KdeOptions | None = None,
        place: Place = ANYWHERE,
    ) -> None:
        super().__init__(embed_dim, num_heads, place=place)
        self.width = (options or KdeOptions()).width

    def project(
        self, x: Tensor, v_prev: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Attention.project`; q is divided by the width, keys have length 1."""
        q, k, v = super().project(x, v_prev, mask)
        return q / self.width, F.normalize(k, dim=-1).to(k.dtype), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        if is_traced():  # the fused kernel becomes many nodes of a graph
            return self.weights(q, k, mask) @ v
        return super().attend(q, k, v, mask)

    def graph_form(self) -> nn.Module:
        """See `Attention.graph_form`."""
        return self


class WeightedKdeAttention(KdeAttention):
    """Kernel regression with a share for every key, so that outliers count for less.

    The answer to q is sum_j a_j K(q, k_j) v_j / sum_j b_j K(q, k_j), where b_j are the shares of
    the keys and a_j those of keys and values together, whose kernel is that of both side by side.
    Both sum to 1. Equal shares give `KdeAttention`. Gradients flow through the shares, too.

    Source: RKDE, its form of robust attention.
    """

    no_map = (
        "robust kernel regression has shares of keys and values above the fraction and shares of "
        "keys below it, so its weights do not sum to 1"
    )
    not_causal = "the shares of its keys depend on all tokens of a sample"

    def shares(self, gram: Tensor, real: Tensor) -> Tensor:
        """The share of every key.

        Args:
            gram: (..., N, N) kernel of all pairs, 1 on the diagonal, anything finite at padding.
            real: (B or 1, 1, N) ones and zeros.

        Returns:
            (..., N), zero at padding, above zero elsewhere.
        """
        raise NotImplementedError

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        dtype, D = v.dtype, v.shape[-1]
        with full_precision(q):  # half precision would leave nothing of differences of distances
            q, k, v = (
                each.to(torch.promote_types(each.dtype, torch.float32)) for each in (q, k, v)
            )
            if mask is None:
                mask = torch.ones(1, q.shape[2], dtype=torch.bool, device=q.device)
            else:
                k, v = (each.masked_fill(~mask[:, None, :, None], 0.0) for each in (k, v))
            apart = squared_distances(k)
            apart = torch.stack((apart, apart + squared_distances(v)))  # (2, B, H, N, N)
            gram = (apart / (-2 * self.width * D**0.5)).exp()
            shares = self.shares(gram, mask[:, None].to(q.dtype))
            padding = ~mask[:, None]
            logs = shares.masked_fill(padding, 1.0).log().masked_fill(padding, -torch.inf)
            keys, both = logs[:, :, :, None].unbind(0)  # each (B, H, 1, N)
            scores = (q @ k.transpose(-2, -1)) * D**-0.5
            total = (scores + keys).logsumexp(-1, keepdim=True)
            return ((scores + both - total).exp() @ v).to(dtype)


def squared_distances(x: Tensor) -> Tensor:
    """(..., N, D) to the squared distances of all pairs, (..., N, N)."""
    lengths = x.square().sum(-1)
    apart = lengths[..., None] + lengths[..., None, :] - 2 * x @ x.transpose(-2, -1)
    return apart.clamp_min(0.0)

"""Dot-product and elliptical attention in few and standard operators, for graphs."""

from torch import Tensor, nn

from models.attention.base import keys_before
from models.attention.metric import attention_weights


class WatchedPart(nn.Module):
    """A part of a layer whose output keeps a name of its own in graphs, such as m."""

    watched: str


class PlainAttention(nn.Module):
    """`models.attention.dot.DotAttention` in as few graph nodes as possible.

    Values are handed on as (B, N, C): m is estimated and applied before the heads are parted, on
    rows three times as long or more. 1 / sqrt(D) is applied to the scores, where runtimes fold it
    into the product that makes them. m of the estimator "difference" under maxscale costs one Sub,
    Abs, MatMul, Clip, ReduceMax, Div and Mul, of which the Sub, Abs and Mul are over all tokens.

    Args:
        qkv: the layer's maps of x to q, k and v side by side.
        proj: its map of what the heads give.
        num_heads: number of heads H.
        metric: estimates m (B or 1, 1 or N, H, D) from q, k, v and v_prev, (B, N, C) each, and the
            real tokens, (B or 1, 1, N) ones and zeros; None for dot-product attention.
        causal: whether no token sees later ones.

    Attributes:
        positions: (H, N, N) whose sigmoid scales the scores, see `models.attention.position`; None
            where nothing does.
    """

    positions: nn.Parameter | None

    def __init__(
        self,
        qkv: nn.Module,
        proj: nn.Module,
        num_heads: int,
        metric: WatchedPart | None = None,
        *,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.qkv, self.proj = qkv, proj
        self.metric = metric
        self.register_parameter("positions", None)

    def forward(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `models.attention.base.Attention.forward`; values are (B, N, C)."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if self.metric is not None and v_prev is not None:
            real = x.new_ones(1, 1, x.shape[1]) if mask is None else mask[:, None].to(x.dtype)
            m = self.metric(q, k, v, v_prev, real)
            q = q * m.flatten(2)
        query, key, value = (parted(each, self.num_heads).transpose(1, 2) for each in (q, k, v))
        factors = None if self.positions is None else self.positions.sigmoid()
        seen = keys_before(x, mask) if self.causal else mask
        attended = attention_weights(query, key, seen, factors=factors) @ value
        return self.proj(attended.transpose(1, 2).reshape(x.shape)), v


def parted(x: Tensor, num_heads: int) -> Tensor:
    """(B, N, C) to (B, N, H, D)."""
    return x.unflatten(-1, (num_heads, -1))

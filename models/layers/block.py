"""The pre-norm transformer block of DeiT and of the sequence transformers.

Source: Vaswani et al., "Attention is all you need", 2017, with the norms moved before the layers.
"""

from typing import Any

import torch
from torch import Tensor, nn

from models.attention.base import ANYWHERE, AttentionOptions, Cache, Place
from models.attention.catalog import make_attention


class Mlp(nn.Module):
    """Two linear layers with an exact GELU between them."""

    def __init__(self, embed_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, embed_dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, N, embed_dim) to the same shape; each token alone, so that no mask is needed."""
        return self.fc2(self.act(self.fc1(x)))

    def extend(self, x: Tensor, cache: Cache) -> Tensor:
        """`forward` for tokens that follow others; none of them is needed."""
        return self(x)


class DropPath(nn.Module):
    """In training, leave out a sublayer for a share of the samples, scale it up for the others.

    Source: Huang et al., "Deep networks with stochastic depth", 2016.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, embed_dim), what a sublayer adds, to the same shape."""
        if not self.training or not self.rate:
            return x
        kept = torch.full((x.shape[0], 1, 1), 1 - self.rate, dtype=x.dtype, device=x.device)
        return x * kept.bernoulli() / (1 - self.rate)


def drop_path_rate(rate: float, layer: int, depth: int) -> float:
    """The share of layer 1..depth: it grows evenly from 0 in the first to `rate` in the last."""
    return rate * (layer - 1) / max(depth - 1, 1)


def init_linear(module: nn.Module) -> None:
    """Draw the weights of a linear layer as DeiT and FAN do; leave any other module as it is."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class Block(nn.Module):
    """Attention and an MLP, each behind a norm, that hands its values to the next block.

    Args:
        embed_dim: width d.
        num_heads: number of heads.
        hidden_dim: width inside the MLP.
        norm_eps: constant of the norms.
        dropout: share of each sublayer's output that training drops.
        drop_path: share of the samples for which training leaves out a sublayer.
        attention: a mechanism of `models.attentions()`.
        options: its own; None for the defaults.
        place: where in the model the block stands.
        mlp: what stands in for the MLP, with the same methods; None for an MLP.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        attention: str = "dot",
        options: AttentionOptions | None = None,
        place: Place = ANYWHERE,
        mlp: Any = None,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.attn = make_attention(
            embed_dim, num_heads, attention=attention, options=options, place=place
        )
        self.norm2 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.mlp: Any = Mlp(embed_dim, hidden_dim) if mlp is None else mlp
        self.dropout = nn.Dropout(dropout)
        self.drop_path = DropPath(drop_path)

    def forward(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the block's tokens and values.

        Args:
            x: (B, N, C) tokens.
            v_prev: (B, H, N, D) values of the previous block; None in the first one.
            mask: (B, N) bool, True for real tokens; None if all are.

        Returns:
            The tokens (B, N, C) and this block's values (B, H, N, D).
        """
        attended, v = self.attn(self.norm1(x), v_prev, mask)
        x = self._added(x, attended)
        return self._added(x, self.mlp(self.norm2(x), mask)), v

    def extend(self, x: Tensor, v_prev: Tensor | None, cache: Cache) -> tuple[Tensor, Tensor]:
        """`forward` for tokens that follow those in the cache; see `Attention.extend`."""
        attended, v = self.attn.extend(self.norm1(x), v_prev, cache)
        x = self._added(x, attended)
        return self._added(x, self.mlp.extend(self.norm2(x), cache)), v

    def _added(self, x: Tensor, given: Tensor) -> Tensor:
        """The tokens with what a sublayer gives."""
        return x + self.drop_path(self.dropout(given))

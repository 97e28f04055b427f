"""The pre-norm transformer block of DeiT and of the sequence transformers.

Source: Vaswani et al., "Attention is all you need", 2017, with the norms moved before the layers.
"""

from typing import Any

from torch import Tensor, nn

from models.elliptical import Attention


class Mlp(nn.Module):
    """Two linear layers with an exact GELU between them.

    Args:
        embed_dim: width d of input and output.
        hidden_dim: width between the two layers.
    """

    def __init__(self, embed_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, embed_dim) to the same shape."""
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """Attention and an MLP, each behind a norm, that hands its values to the next block.

    Args:
        embed_dim: width d.
        num_heads: number of heads.
        hidden_dim: width inside the MLP.
        norm_eps: constant of the norms.
        dropout: share of each sublayer's output that training drops.
        **attention: options of `Attention`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        **attention: Any,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.attn = Attention(embed_dim, num_heads, **attention)
        self.norm2 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.mlp = Mlp(embed_dim, hidden_dim)
        self.dropout = nn.Dropout(dropout)

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
        x = x + self.dropout(attended)
        return x + self.dropout(self.mlp(self.norm2(x))), v

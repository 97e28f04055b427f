"""Class attention, with which a FAN-ViT ends: only the class token looks, at all tokens.

Source of each choice: [paper] Touvron et al., "Going deeper with image transformers", ICCV 2021
(CaiT); [code] the public code of FAN (Zhou et al., ICML 2022); [ours].
"""

import torch
from torch import Tensor, nn

from models.layers.block import Mlp


class ClassAttention(nn.Module):
    """Attention of the class token alone, to itself and to all others.

    The scores are written out: they are one row per head. A bias of k would add the same to every
    score of a row, which the softmax takes away again, so k has none [ours].

    Source: [paper].
    """

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.heads = (num_heads, embed_dim // num_heads)
        self.q = nn.Linear(embed_dim, embed_dim)
        self.k = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v = nn.Linear(embed_dim, embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1 + N, embed_dim), the class token first, to its attended form (B, 1, embed_dim)."""
        v = self.v(x).unflatten(2, self.heads).transpose(1, 2)  # (B, H, 1 + N, D)
        return self.proj((self.attention_map(x) @ v).transpose(1, 2).flatten(2))

    def attention_map(self, x: Tensor) -> Tensor:
        """The weights (B, H, 1, 1 + N) of the class token; x as in `forward`."""
        q = self.q(x[:, :1]).unflatten(2, self.heads).transpose(1, 2)  # (B, H, 1, D)
        k = self.k(x).unflatten(2, self.heads).permute(0, 2, 3, 1)  # (B, H, D, 1 + N)
        return (q @ k * self.heads[1] ** -0.5).softmax(-1)


class ClassBlock(nn.Module):
    """Class attention and an MLP of the class token; the others are normed on the way.

    The first residual adds their normed form to the other tokens; the second norm replaces all
    tokens, and the second residual counts the others twice [code]. The next norm takes the factor
    out again but for its eps: it is kept so that public weights give their own logits.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, hidden_dim: int, *, norm_eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.attn = ClassAttention(embed_dim, num_heads)
        self.gamma1 = nn.Parameter(torch.ones(embed_dim))
        self.norm2 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.mlp = Mlp(embed_dim, hidden_dim)
        self.gamma2 = nn.Parameter(torch.ones(embed_dim))

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1 + N, embed_dim), the class token first, to the same shape."""
        normed = self.norm1(x)
        x = x + self.gamma1 * torch.cat((self.attn(normed), normed[:, 1:]), dim=1)
        x = self.norm2(x)
        return x + torch.cat((self.gamma2 * self.mlp(x[:, :1]), x[:, 1:]), dim=1)

"""The transformers that TransJect is compared with: plain, with ReZero, with orthogonal attention.

All three read word pieces, add sinusoidal positions and pool over real tokens. The paper (TJ) says
no more about them: sizes that it does not give are those of its own model, and what each form does
exactly is our reading of the works it cites.

Source: TJ tables 1 and 2; Vaswani et al., "Attention is all you need", 2017.
"""

from dataclasses import dataclass
from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.fields import check_at_least, check_fraction, check_types
from models.attention.catalog import make_attention
from models.attention.config import AttentionArguments, AttentionConfig
from models.layers.block import Block, Mlp
from models.layers.tokens import SinusoidalPositions, TokenModel, pool
from models.layers.towers import TwoTower
from models.transject import OrthogonalMaps

Variant = Literal["plain", "rezero", "orthogonal"]
BasePooling = Literal["mean", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineConfig(AttentionConfig):
    """What defines a baseline; `seq_len` is the largest number of tokens.

    With `towers` 2 a sample is two sequences. `dropout` is the share of the embedding and of each
    sublayer's output that training drops.
    """

    variant: Variant = "plain"
    vocab_size: int = 30522
    seq_len: int = 512
    num_classes: int = 2
    embed_dim: int = 512
    depth: int = 6
    num_heads: int = 8
    mlp_ratio: float = 4.0
    pooling: BasePooling = "mean"
    towers: int = 1
    dropout: float = 0.1

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        sizes = ("vocab_size", "seq_len", "num_classes", "embed_dim", "depth", "num_heads")
        check_at_least(self, 1, *sizes, "hidden_dim")
        if self.towers not in (1, 2):
            raise ValueError(f"towers must be 1 or 2, got {self.towers}")
        if self.embed_dim % 2:
            raise ValueError(
                f"embed_dim must be a multiple of 2 for its positions, got {self.embed_dim}"
            )
        check_fraction(self, "dropout")
        AttentionConfig.__post_init__(self)

    @property
    def max_tokens(self) -> int:
        """See `AttentionConfig.max_tokens`."""
        return self.seq_len

    @property
    def hidden_dim(self) -> int:
        """Width inside the MLP."""
        return round(self.embed_dim * self.mlp_ratio)


class ReZeroBlock(nn.Module):
    """Attention and an MLP without norms: x + alpha * F(x), one alpha for both, from 0 on.

    Arguments are those of `Block`.

    Source: Bachlechner et al., "ReZero is all you need", UAI 2021 (arXiv 2020), section 5.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        dropout: float,
        **attention: Unpack[AttentionArguments],
    ) -> None:
        super().__init__()
        self.attn = make_attention(embed_dim, num_heads, **attention)
        self.mlp = Mlp(embed_dim, hidden_dim)
        self.alpha = nn.Parameter(torch.zeros(()))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the block's tokens (B, N, C) and values; arguments as of `Block`."""
        attended, v = self.attn(x, v_prev, mask)
        x = x + self.alpha * self.dropout(attended)
        return x + self.alpha * self.dropout(self.mlp(x)), v


class OrthogonalLinear(nn.Module):
    """Square orthogonal maps of one input side by side, each with a bias.

    In the place of a linear layer of `Attention`, which needs no other change.

    Args:
        dim: width d of the input.
        count: number of maps; the output has width count * d.
    """

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        self.maps = OrthogonalMaps(count, dim)
        self.bias = nn.Parameter(torch.zeros(count * dim))

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, dim) to (B, N, count * dim)."""
        return F.linear(x, self.maps.stacked().flatten(0, 1), self.bias)


class BaselineTransformer(TokenModel):
    """Classify token sequences as the baselines of TJ do.

    The plain and the orthogonal form are pre-norm and end with a norm; ReZero has no norm at all.
    """

    config: BaselineConfig

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__(config)
        self.token_embed = nn.Embedding(config.vocab_size, config.embed_dim)
        self.positions = SinusoidalPositions(config.seq_len, config.embed_dim)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(_block(config, layer + 1) for layer in range(config.depth))
        rezero = config.variant == "rezero"
        self.norm = nn.Identity() if rezero else nn.LayerNorm(config.embed_dim, eps=1e-6)
        self.head = nn.Linear(config.embed_dim, config.num_classes)

    def features(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """See `TokenModel.features`."""
        self.check(tokens, mask)
        x, v = self.dropout(self.token_embed(tokens) + self.positions(tokens.shape[1])), None
        for block in self.blocks:
            x, v = block(x, v, mask)
        return pool(self.norm(x), mask, self.config.pooling)


def _block(config: BaselineConfig, layer: int) -> nn.Module:
    sizes, attention = (config.embed_dim, config.num_heads, config.hidden_dim), config.attention_at
    if config.variant == "rezero":
        return ReZeroBlock(*sizes, dropout=config.dropout, **attention(layer))
    block = Block(*sizes, dropout=config.dropout, **attention(layer))
    if config.variant == "orthogonal":
        # The paper leaves open which maps are orthogonal: the square ones of attention [ours].
        block.set_submodule("attn.qkv", OrthogonalLinear(config.embed_dim, block.attn.maps))
        block.set_submodule("attn.proj", OrthogonalLinear(config.embed_dim, 1))
    return block


def baseline_model(config: BaselineConfig) -> BaselineTransformer | TwoTower:
    """The model of a config: one tower or two."""
    encoder = BaselineTransformer(config)
    return encoder if config.towers == 1 else TwoTower(encoder, hidden_dim=config.hidden_dim)

"""The transformer of the Long Range Arena (LRA), with any attention of `models.attentions()`.

Source: Tay et al., "Long Range Arena", ICLR 2021; sizes and head: the public code that Nielsen et
al., "Elliptical Attention", NeurIPS 2024 (EA) build on. That code divides the mean by the padded
length; here it runs over the real tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.fields import check_at_least, check_fraction, check_types
from models.attention.config import AttentionConfig
from models.layers.block import Block
from models.layers.tokens import Pooling, TokenModel, pool
from models.layers.towers import TwoTower, classifier


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceConfig(AttentionConfig):
    """What defines a sequence transformer; the defaults fit LRA Text, bytes of at most 4096.

    `seq_len` is the largest number of tokens, without the class token that pooling "cls" adds.
    With `towers` 2 a sample is two sequences. `dropout` is the share of the embedding and of each
    sublayer's output that training drops.
    """

    vocab_size: int = 256
    seq_len: int = 4096
    num_classes: int = 2
    embed_dim: int = 64
    depth: int = 2
    num_heads: int = 2
    mlp_ratio: float = 2.0
    pooling: Pooling = "mean"
    towers: int = 1
    dropout: float = 0.1

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_at_least(self, 1, "vocab_size", "seq_len", "num_classes", "hidden_dim")
        if self.towers not in (1, 2):
            raise ValueError(f"towers must be 1 or 2, got {self.towers}")
        check_fraction(self, "dropout")
        AttentionConfig.__post_init__(self)

    @property
    def max_tokens(self) -> int:
        """See `AttentionConfig.max_tokens`."""
        return self.seq_len + (self.pooling == "cls")

    @property
    def default_layers(self) -> tuple[int, ...]:
        """All layers, or the last alone for what reads the values of a previous one."""
        layers = range(self.first_layer, self.depth + 1)
        return tuple(layers[-1:] if self.first_layer > 1 else layers)

    @property
    def hidden_dim(self) -> int:
        """Width inside the MLPs and the head."""
        return round(self.embed_dim * self.mlp_ratio)


class SequenceTransformer(TokenModel):
    """Classify token sequences."""

    config: SequenceConfig

    def __init__(self, config: SequenceConfig) -> None:
        super().__init__(config)
        self.token_embed = nn.Embedding(config.vocab_size, config.embed_dim)
        self.pos_embed = nn.Parameter(torch.empty(1, config.seq_len, config.embed_dim))
        self.cls_token = (
            nn.Parameter(torch.empty(1, 1, config.embed_dim)) if config.pooling == "cls" else None
        )
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(
                config.embed_dim,
                config.num_heads,
                config.hidden_dim,
                dropout=config.dropout,
                **config.attention_at(layer),
            )
            for layer in range(1, config.depth + 1)
        )
        self.norm = nn.LayerNorm(config.embed_dim, eps=1e-6)
        self.head = classifier(config.embed_dim, config.hidden_dim, config.num_classes)
        for table in (self.token_embed.weight, self.pos_embed, self.cls_token):
            if table is not None:
                nn.init.trunc_normal_(table, std=0.02)

    def features(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """See `TokenModel.features`."""
        self.check(tokens, mask)
        x = self.token_embed(tokens) + self.pos_embed[:, : tokens.shape[1]]
        if self.cls_token is not None:
            x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
            mask = None if mask is None else F.pad(mask, (1, 0), value=True)
        x, v = self.dropout(x), None
        for block in self.blocks:
            x, v = block(x, v, mask)
        return pool(self.norm(x), mask, self.config.pooling)


def sequence_model(config: SequenceConfig) -> SequenceTransformer | TwoTower:
    """The model of a config: one tower or two."""
    encoder = SequenceTransformer(config)
    return encoder if config.towers == 1 else TwoTower(encoder, hidden_dim=config.hidden_dim)

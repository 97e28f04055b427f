"""A causal language model, with any attention of `models.attentions()` that can be causal.

Source: sizes of Nielsen et al., "Elliptical Attention", NeurIPS 2024 (EA), section 4.2, pre-norm as
all transformers here.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.fields import check_at_least, check_fraction, check_types
from models.attention.base import Cache, layers_of
from models.layers.block import Block
from models.layers.experts import MixtureConfig
from models.layers.tokens import SinusoidalPositions, TokenModel

_NARROWER = 4
"""How much narrower each cluster of rarer words is than the one before, as in Grave et al."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageConfig(MixtureConfig):
    """What defines a language model; the defaults are the small one of EA.

    `seq_len` is the largest context. `dropout` is the share of the embedding and of each sublayer's
    output that training drops. Without `cutoffs` the softmax shares its vectors with the embedding;
    with them it is adaptive: words from the first cutoff on, which should be rare, are in clusters.
    """

    vocab_size: int = 267_735
    seq_len: int = 256
    embed_dim: int = 128
    depth: int = 16
    num_heads: int = 8
    mlp_ratio: float = 16.0
    dropout: float = 0.1
    cutoffs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_at_least(self, 1, "vocab_size", "seq_len", "hidden_dim")
        check_fraction(self, "dropout")
        bounds = [0, *self.cutoffs, self.vocab_size]
        if self.cutoffs and not all(low < high for low, high in pairwise(bounds)):
            raise ValueError(
                f"cutoffs must ascend between 0 and vocab_size {self.vocab_size}, "
                f"got {self.cutoffs}"
            )
        if self.embed_dim % 2:
            raise ValueError(
                f"embed_dim must be a multiple of 2 for positions, got {self.embed_dim}"
            )
        MixtureConfig.__post_init__(self)

    @property
    def max_tokens(self) -> int:
        """See `AttentionConfig.max_tokens`."""
        return self.seq_len

    @property
    def causal(self) -> bool:
        """See `AttentionConfig.causal`."""
        return True

    @property
    def hidden_dim(self) -> int:
        """Width inside the MLPs."""
        return round(self.embed_dim * self.mlp_ratio)


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities of words by clusters: log p(word) = log p(cluster) + log p(word | cluster).

    The words before the first cutoff are outcomes of their own beside the clusters. Each cluster is
    read in a quarter of the width of the one before.

    Args:
        embed_dim: width d.
        vocab_size: number of words V.
        cutoffs: where clusters start, ascending in 1..V-1.

    Source: Grave et al., "Efficient softmax approximation for GPUs", 2017; all words' instead of
        one word's.
    """

    def __init__(self, embed_dim: int, vocab_size: int, cutoffs: tuple[int, ...]) -> None:
        super().__init__()
        self.first = cutoffs[0]
        self.head = nn.Linear(embed_dim, self.first + len(cutoffs), bias=False)
        widths = (max(embed_dim // _NARROWER**rank, 1) for rank in range(1, len(cutoffs) + 1))
        sizes = (high - low for low, high in pairwise((*cutoffs, vocab_size)))
        self.tail = nn.ModuleList(
            nn.Sequential(
                nn.Linear(embed_dim, width, bias=False), nn.Linear(width, size, bias=False)
            )
            for width, size in zip(widths, sizes, strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, embed_dim) to log-probabilities (B, N, V)."""
        head = self.head(x).log_softmax(-1)
        parts = [head[..., : self.first]]
        for place, tail in enumerate(self.tail, start=self.first):
            parts.append(head[..., place : place + 1] + tail(x).log_softmax(-1))
        return torch.cat(parts, dim=-1)


@dataclass(slots=True)
class Seen:
    """What a language model keeps of the tokens that it has read: of each layer, and how many."""

    layers: list[Cache] = field(default_factory=list)
    length: int = 0


class CausalTransformer(TokenModel):
    """The blocks of a language model, without what reads them."""

    config: LanguageConfig

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__(config)
        self.token_embed = nn.Embedding(config.vocab_size, config.embed_dim)
        self.positions = SinusoidalPositions(config.seq_len, config.embed_dim)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(
                config.embed_dim,
                config.num_heads,
                config.hidden_dim,
                dropout=config.dropout,
                mlp=config.mixture_at(layer),
                **config.attention_at(layer),
            )
            for layer in range(1, config.depth + 1)
        )
        self.norm = nn.LayerNorm(config.embed_dim, eps=1e-6)
        # The norm's outputs have a spread of 1, so logits of about 1 need vectors of length 1.
        nn.init.normal_(self.token_embed.weight, std=config.embed_dim**-0.5)

    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """What the blocks make of each token, (B, N, embed_dim).

        No token's depends on later ones. Those of padding mean nothing. Arguments and errors as of
        `TokenModel.features`.
        """
        self.check(tokens, mask)
        x = self.embed(tokens, self.positions(tokens.shape[1]))
        v = None
        for block in self.blocks:
            x, v = block(x, v, mask)
        return self.norm(x)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """What the first block sees of tokens (B, N) at `positions` (N, embed_dim)."""
        scale = self.config.embed_dim**0.5  # of Vaswani et al. 2017, section 3.4
        return self.dropout(self.token_embed(tokens) * scale + positions)


class LanguageModel(CausalTransformer):
    """Predict each next token from the tokens up to it."""

    head: AdaptiveSoftmax | None

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__(config)
        self.head = None
        if config.cutoffs:
            self.head = AdaptiveSoftmax(config.embed_dim, config.vocab_size, config.cutoffs)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """The logits (B, N, V) of the token after each one; log-probabilities with `cutoffs`.

        Arguments and errors as of `features`.
        """
        return self._answer(self.features(tokens, mask))

    def extend(self, tokens: Tensor, seen: Seen) -> Tensor:
        """`forward` for tokens that follow those seen, and join them.

        Args:
            tokens: (B, n) int64 ids.
            seen: what is kept of earlier tokens.

        Returns:
            The logits (B, n, V) that `forward` gives for these tokens behind the earlier ones.

        Raises:
            ValueError: see `check`; more tokens than seq_len, or an attention without a cache.
        """
        self.check(tokens, None)
        end = seen.length + tokens.shape[1]
        if end > self.config.seq_len:
            raise ValueError(f"tokens must be at most seq_len {self.config.seq_len}, got {end}")
        if not seen.layers:
            _require_cache(self)
            seen.layers = [{} for _ in self.blocks]
        x, v = self.embed(tokens, self.positions(end)[seen.length :]), None
        for block, cache in zip(self.blocks, seen.layers, strict=True):
            x, v = cast(Block, block).extend(x, v, cache)
        seen.length = end
        return self._answer(self.norm(x))

    def _answer(self, x: Tensor) -> Tensor:
        return F.linear(x, self.token_embed.weight) if self.head is None else self.head(x)

    def features(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """What the softmax sees of each token, (B, N, embed_dim): see `encode`."""
        return self.encode(tokens, mask)


def _require_cache(model: nn.Module) -> None:
    for layer in layers_of(model):
        if layer.no_cache:
            raise ValueError(f"the attention must have a cache, got one without: {layer.no_cache}")

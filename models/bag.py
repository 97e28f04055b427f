"""A bag of tokens: the mean of their embeddings, and a linear classifier.

It sees neither order nor pairs of tokens: what a table's other models must beat to have learned
more than how often each token occurs.

Source: Iyyer et al., "Deep unordered composition rivals syntactic methods", 2015, without layers.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from core.fields import check_at_least, check_types
from models.layers.tokens import TokenModel, masked_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class BagConfig:
    """What defines a bag of tokens; `seq_len` is the largest number of tokens."""

    vocab_size: int = 30522
    seq_len: int = 512
    num_classes: int = 2
    embed_dim: int = 64

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        check_types(self)
        check_at_least(self, 1, "vocab_size", "seq_len", "num_classes", "embed_dim")


class BagOfTokens(TokenModel):
    """Classify token sequences by their mean embedding."""

    config: BagConfig

    def __init__(self, config: BagConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.embed_dim)
        self.head = nn.Linear(config.embed_dim, config.num_classes)

    def features(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """See `TokenModel.features`."""
        self.check(tokens, mask)
        return masked_mean(self.embedding(tokens), mask)

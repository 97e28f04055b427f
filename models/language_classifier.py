"""A classifier of texts made from a language model: its blocks, and a head over the mean token.

Parameter names are those of the language model, so that training can start from its weights.

Source: Nielsen et al., "Elliptical Attention", NeurIPS 2024 (EA), section 4.5, fine-tunes its
mixtures so; the mean is ours.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from core.fields import check_at_least
from models.language import CausalTransformer, LanguageConfig
from models.layers.tokens import masked_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageClassifierConfig(LanguageConfig):
    """What defines the classifier: its language model, without `cutoffs`, and the classes."""

    num_classes: int = 2

    def __post_init__(self) -> None:
        """Check every rule, naming the field and the value received."""
        LanguageConfig.__post_init__(self)
        check_at_least(self, 1, "num_classes")
        if self.cutoffs:
            raise ValueError(f"cutoffs must be () in a classifier, got {self.cutoffs}")


class LanguageClassifier(CausalTransformer):
    """Classify token sequences by the mean of what the blocks make of the real tokens."""

    def __init__(self, config: LanguageClassifierConfig) -> None:
        super().__init__(config)
        self.head = nn.Linear(config.embed_dim, config.num_classes)

    def features(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """See `TokenModel.features`."""
        return masked_mean(self.encode(tokens, mask), mask)

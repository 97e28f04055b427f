"""Two sequences classified together by one encoder, for tasks such as LRA Retrieval.

Source: Tay et al., "Long Range Arena", ICLR 2021; the head is the one of the public LRA code that
the Elliptical Attention paper builds on.
"""

from typing import Any

import torch
from torch import Tensor, nn

from models.layers.tokens import TokenModel


class TwoTower(TokenModel):
    """Encode two sequences by the same encoder and classify the pair [a, b, a * b, a - b].

    Args:
        encoder: a token model with `features(tokens, mask)` of width `config.embed_dim` and a
            `head`, which is taken from it: the pair's own head replaces it.
        hidden_dim: width inside the head.
    """

    def __init__(self, encoder: nn.Module, *, hidden_dim: int) -> None:
        super().__init__(encoder.config)
        self.encoder: Any = encoder
        # Left in place, it would be weights that no logit depends on.
        self.encoder.head = nn.Identity()
        self.head = classifier(4 * self.config.embed_dim, hidden_dim, self.config.num_classes)

    def features(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """See `TokenModel.features`; tokens and mask are (B, 2, N)."""
        return _compare(self.encoder.features(*self._rows(tokens, mask)))

    def _rows(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        self.check(tokens, mask, towers=2)
        return tokens.flatten(0, 1), None if mask is None else mask.flatten(0, 1)


class TransJectTowers(TwoTower):
    """Two towers over a TransJect, with its reconstruction loss; arguments as of `TwoTower`."""

    def logits_and_reconstruction(
        self, tokens: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The logits and the reconstruction loss over all sequences."""
        rows, rows_mask = self._rows(tokens, mask)
        features, loss = self.encoder.logits_and_reconstruction(rows, rows_mask)
        return self.head(_compare(features)), loss


def _compare(features: Tensor) -> Tensor:
    a, b = features.unflatten(0, (-1, 2)).unbind(1)  # each (B, embed_dim)
    return torch.cat((a, b, a * b, a - b), dim=-1)


def classifier(embed_dim: int, hidden_dim: int, num_classes: int) -> nn.Sequential:
    """The head of the LRA models: linear, ReLU, linear."""
    return nn.Sequential(
        nn.Linear(embed_dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, num_classes)
    )

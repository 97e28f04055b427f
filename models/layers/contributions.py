"""What single tokens add to logits that are a mean over tokens."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from models.layers.tokens import Pooling, pool


class BoundedHead(nn.Linear):
    """A head that keeps what a token adds within bounds: mean of clamp(W x, -c, c) + b.

    Where the tokens do not see each other, replacing one of N changes a difference of two logits
    by at most 4 c / N.

    Args:
        embed_dim: width of the tokens.
        num_classes: number of classes K.
        bound: c.
    """

    def __init__(self, embed_dim: int, num_classes: int, bound: float) -> None:
        super().__init__(embed_dim, num_classes)
        self.bound = bound

    def forward(self, input: Tensor) -> Tensor:
        """The logits (B, K) from what `head_input` gives."""
        return input + self.bias


def head_of(config: Any) -> nn.Linear:
    """The head of an encoder whose `token_bound` is c, or None for a plain one."""
    if config.token_bound is None:
        return nn.Linear(config.embed_dim, config.num_classes)
    return BoundedHead(config.embed_dim, config.num_classes, config.token_bound)


def contributions(head: nn.Linear, x: Tensor) -> Tensor:
    """What tokens (..., embed_dim) add to the logits before the mean, (..., K)."""
    given = F.linear(x, head.weight)
    if not isinstance(head, BoundedHead):
        return given
    clipped = given.clamp(-head.bound, head.bound)
    # The bound passes gradients on in training, so that a token that has reached it may turn back.
    return given + (clipped - given).detach() if head.training else clipped


def head_input(head: nn.Module, x: Tensor, mask: Tensor | None, pooling: Pooling) -> Tensor:
    """What a head sees of encoded tokens (B, N, embed_dim): pooled tokens, or contributions."""
    return pool(contributions(head, x) if isinstance(head, BoundedHead) else x, mask, pooling)

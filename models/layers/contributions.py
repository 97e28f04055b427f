"""What single tokens add to logits that are a mean over tokens."""

from typing import Any

import torch
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


class _Bounded(torch.autograd.Function):
    """clamp(x, -c, c), with the gradient of x where following it leads back within the bounds.

    Without it a token that has reached a bound would never turn back; with all of the gradient such
    tokens would be pushed on, which teaches nothing.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:
        """The clipped x."""
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.clamp(-bound, bound)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """The gradient of x, and none of the bound; a step goes against the gradient."""
        (x,), (grad,) = ctx.saved_tensors, grads
        on = ((x > ctx.bound) & (grad < 0)) | ((x < -ctx.bound) & (grad > 0))
        return grad.masked_fill(on, 0), None


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
    if not head.training:
        return given.clamp(-head.bound, head.bound)
    return _Bounded.apply(given, head.bound)


def head_input(head: nn.Module, x: Tensor, mask: Tensor | None, pooling: Pooling) -> Tensor:
    """What a head sees of encoded tokens (B, N, embed_dim): pooled tokens, or contributions."""
    return pool(contributions(head, x) if isinstance(head, BoundedHead) else x, mask, pooling)

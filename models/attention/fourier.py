"""FourierFormer: kernel regression with the generalized Fourier integral kernel.

Source: Nguyen et al., "FourierFormer: transformer meets generalized Fourier integral theorem",
NeurIPS 2022 (FF).
"""

from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from models.attention.base import ANYWHERE, Attention, AttentionOptions, Place
from models.attention.metric import for_heads
from models.layers.tracing import is_traced

# Dimensions compared at a time: memory is N x N x 8 a head, also in training.
_CHUNK = 8
# Below it log(sin(x) / x) is a polynomial, right to 3e-13, since sines and x all but cancel.
_SMALL = 0.1


class FourierAttention(Attention):
    """Weights prod_d phi(sin(R (q_d - k_d)) / (R (q_d - k_d))) over their sum, phi(x) = x^4.

    Each head learns its R, which starts at 1. Products are sums of logarithms, so that none
    vanishes; the gradient computes them again, instead of keeping what is N x N x D large.
    Arguments as of `Attention`.

    Source: FF; R and phi as in the code of Han et al. 2022, which has one R for all heads.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        options: AttentionOptions | None = None,
        place: Place = ANYWHERE,
    ) -> None:
        super().__init__(embed_dim, num_heads, place=place)
        self.radius = nn.Parameter(torch.ones(num_heads))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.attend`."""
        return self.weights(q, k, mask).to(v.dtype) @ v

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """See `Attention.weights`."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        radius = self.radius.to(dtype)[:, None, None]
        q, k = (each.to(dtype) * radius for each in (q, k))
        again = torch.is_grad_enabled() and q.requires_grad and not is_traced()
        compare = LogKernel.apply if again else log_kernel
        parts = zip(q.split(_CHUNK, dim=-1), k.split(_CHUNK, dim=-1), strict=True)
        scores = 4 * reduce(torch.add, [compare(*part) for part in parts])
        if mask is not None:
            scores = scores.masked_fill(~for_heads(mask), -torch.inf)
        return scores.softmax(-1)


class LogKernel(torch.autograd.Function):
    """`log_kernel`, whose gradient computes the differences again instead of keeping them."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor) -> Tensor:
        """See `log_kernel`."""
        ctx.save_for_backward(q, k)
        return log_kernel(q, k)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients by q and k, which can be derived again."""
        pulled = gradients[0][..., None, :, :] * slopes(differences(*ctx.saved_tensors))
        return pulled.sum(-1).transpose(-2, -1), -pulled.sum(-2).transpose(-2, -1)


def differences(q: Tensor, k: Tensor) -> Tensor:
    """q_id - k_jd, (..., N, D) twice to (..., D, N, N)."""
    return q.transpose(-2, -1)[..., None] - k.transpose(-2, -1)[..., None, :]


def log_kernel(q: Tensor, k: Tensor) -> Tensor:
    """sum_d log |sin(x_d) / x_d| of x = q_i - k_j: (..., N, D) twice to (..., N, N)."""
    x = differences(q, k)
    small = x.abs() < _SMALL
    square = x.masked_fill(~small, 0.0).square()
    near = -square * (1 / 6 + square * (1 / 180 + square / 2835))
    large = x.masked_fill(small, 1.0)
    far = large.sin().abs().log() - large.abs().log()
    return torch.where(small, near, far).sum(-3)


def slopes(x: Tensor) -> Tensor:
    """The derivative of log |sin(x) / x|, cot(x) - 1 / x."""
    small = x.abs() < _SMALL
    little = x.masked_fill(~small, 0.0)
    square = little.square()
    near = -little * (1 / 3 + square * (1 / 45 + square * (2 / 945 + square / 4725)))
    large = x.masked_fill(small, 1.0)
    return torch.where(small, near, large.cos() / large.sin() - 1 / large)

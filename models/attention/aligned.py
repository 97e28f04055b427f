"""For mechanisms that count tokens: the real ones first, in their order, and padding behind."""

from typing import Any

import torch
from torch import Tensor

from models.attention.base import Attention
from models.layers.tracing import is_traced


class AlignedAttention(Attention):
    """Attention for whose sums the places of tokens matter; arguments as of `Attention`.

    `project` and `attend` are given the real tokens of each sample first, padding, as zeros, behind
    them: wherever it was, a sample is treated as it would be without it. So a causal layer needs no
    mask: whatever padding holds comes after the real tokens.
    """

    def forward(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `Attention.forward`; the values are in the order of what is attended to."""
        if mask is None:
            return super().forward(x)
        places = places_of(mask)
        out, v = super().forward(*aligned(x, mask, places))
        return out.gather(1, places[:, :, None].expand_as(out)), v

    def seen(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        """See `Attention.seen`; of tokens in their order."""
        return super().seen(x, None if self.causal else mask)

    def attention_map(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """See `Attention.attention_map`."""
        if mask is None:
            return super().attention_map(x)
        places = places_of(mask)
        attn = super().attention_map(*aligned(x, mask, places))
        rows = attn.gather(2, places[:, None, :, None].expand_as(attn))
        return rows.gather(3, places[:, None, None, :].expand_as(attn))


def places_of(mask: Tensor) -> Tensor:
    """The place (B, N) of each token when the real ones of a mask (B, N) come first."""
    real = mask.long()
    return torch.where(mask, real.cumsum(1), real.sum(1, keepdim=True) + (1 - real).cumsum(1)) - 1


def aligned(x: Tensor, mask: Tensor, places: Tensor) -> tuple[Tensor, Any, Tensor]:
    """Tokens (B, N, C) in the order of their places, None for values, and their mask (B, N)."""
    numbers = torch.arange(mask.shape[1], device=mask.device).expand_as(places)
    order = torch.zeros_like(places).scatter(1, places, numbers)
    x = x.masked_fill(~mask[:, :, None], 0.0)
    x = x.gather(1, order[:, :, None].expand_as(x))
    return x, None, numbers < mask.sum(1, keepdim=True)


def without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """(B, H, N, D) with zeros at padding."""
    return x if mask is None else x.masked_fill(~mask[:, None, :, None], 0.0)


def weights_by_values(layer: Attention, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """The weights (B, H, N, N) of a mechanism: what it gives where each token's value is itself."""
    one = torch.eye(q.shape[2], dtype=q.dtype, device=q.device).expand(*q.shape[:2], -1, -1)
    if mask is not None:
        one = one.masked_fill(~mask[:, None, None], 0.0)
    return layer.attend(q, k, one, mask)


def real_lengths(x: Tensor, mask: Tensor | None) -> Tensor:
    """The number of real tokens (B, 1) int64 of (B, H, N, D) and its mask."""
    if mask is None:
        return torch.full((x.shape[0], 1), x.shape[2], device=x.device)
    return mask.sum(1, keepdim=True)


def first_columns(x: Tensor, count: int) -> Tensor:
    """The first columns of (..., N), in a form whose memory looks alike whatever their number.

    The strides of a slice tell whether it is the whole, which would fix the length of a graph.
    """
    if is_traced():
        return x.index_select(-1, torch.arange(count, device=x.device))
    return x[..., :count]


def check_length(name: str, length: int, most: int) -> None:
    """Refuse more tokens than a mechanism was built for.

    Raises:
        ValueError: names both numbers.
    """
    if length > most:
        raise ValueError(f"{name} attention was built for at most {most} tokens, got {length}")


def required_length(name: str, length: int | None) -> int:
    """The largest number of tokens, which parameters of a mechanism depend on.

    Raises:
        ValueError: there is none.
    """
    if length is None:
        raise ValueError(f"place must have a length for {name} attention, got None")
    return length

"""Landmarks of a sequence: the means of its segments."""

import torch
from torch import Tensor

from models.layers.tracing import is_traced


def segment_counts(lengths: Tensor, count: int) -> Tensor:
    """How many segments (B, 1) sequences of these lengths (B, 1) have: at most one a token."""
    return lengths.clamp(max=count)


def segment_shares(
    lengths: Tensor, count: int, num_tokens: int, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """What takes the means over `count` segments of equal length, (B, count, N).

    Of a sequence with n real tokens, which come first, token t belongs to the segment t c / n,
    rounded down, with c = min(count, n); rows from c on are zero. Every segment has a token, and
    their lengths differ by one at most.

    Args:
        lengths: (B, 1) real tokens of each sequence.
        count: number of segments.
        num_tokens: N.
        dtype: of the result, float32 or float64.
    """
    tokens = torch.arange(num_tokens, device=lengths.device)
    segments = tokens * segment_counts(lengths, count) // lengths  # (B, N), c or more at padding
    numbers = torch.arange(count, device=lengths.device)
    within = numbers[None, :, None] == segments[:, None, :]
    within = (within & (tokens < lengths)[:, None, :]).to(dtype)
    return within / within.sum(2, keepdim=True).clamp_min(1.0)


def segment_means(x: Tensor, lengths: Tensor, count: int, *, padded: bool) -> Tensor:
    """The means (B, H, count, D) of the segments of (B, H, N, D), as of `segment_shares`.

    Args:
        x: tokens, the real ones first, the others finite.
        lengths: (B, 1) real tokens of each sequence.
        count: number of segments.
        padded: whether there may be padding; without, equal segments need no product.
    """
    N = x.shape[2]
    if not padded and not is_traced() and N % count == 0:
        return x.unflatten(2, (count, N // count)).mean(3)
    dtype = torch.promote_types(x.dtype, torch.float32)
    return segment_shares(lengths, count, N, dtype=dtype)[:, None].to(x.dtype) @ x

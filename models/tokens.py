"""What all token models share: checks of their input, positions, pooling over real tokens."""

from typing import Literal

import torch
from torch import Tensor

Pooling = Literal["mean", "max", "cls"]


def check_tokens(tokens: Tensor, mask: Tensor | None, *, vocab_size: int, seq_len: int) -> None:
    """Refuse token ids and masks that a model cannot answer for; silent while it is traced.

    Args:
        tokens: (B, N) integer ids.
        mask: (B, N) bool, True for real tokens; None if all are.
        vocab_size: ids must lie in [0, vocab_size).
        seq_len: largest N.

    Raises:
        ValueError: a wrong shape or type, too long a sequence, an id outside the vocabulary, or a
            sample without a real token.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return
    if tokens.ndim != 2 or not 1 <= tokens.shape[1] <= seq_len:
        raise ValueError(f"tokens must be (B, 1..{seq_len}), got {tuple(tokens.shape)}")
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise ValueError(f"tokens must be integers, got {tokens.dtype}")
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        bounds = f"{int(tokens.min())}..{int(tokens.max())}"
        raise ValueError(f"tokens must lie in 0..{vocab_size - 1}, got {bounds}")
    if mask is not None:
        _check_mask(mask, tokens.shape)


def _check_mask(mask: Tensor, shape: torch.Size) -> None:
    if mask.dtype != torch.bool or mask.shape != shape:
        raise ValueError(
            f"mask must be bool of shape {tuple(shape)}, got {mask.dtype} {tuple(mask.shape)}"
        )
    empty = (~mask.any(1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"mask must have a real token in every sample, got none in {empty[:10]}")


def sinusoidal_positions(seq_len: int, dim: int) -> Tensor:
    """Table of positions, PE[p, 2k] = sin(p / 10000^(2k / dim)), PE[p, 2k + 1] = cos(same).

    Args:
        seq_len: number of positions.
        dim: width of the table, even.

    Returns:
        (seq_len, dim) float64, so that a model of any precision may round it once.

    Source: Vaswani et al. 2017, section 3.5.
    """
    positions = torch.arange(seq_len, dtype=torch.float64)[:, None]
    angles = positions / 10000 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)  # (seq_len, dim)


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the real tokens: (B, N, C) and (B, N) bool or None to (B, C)."""
    if mask is None:
        return x.mean(1)
    real = mask[:, :, None].to(x.dtype)
    return x.masked_fill(~mask[:, :, None], 0.0).sum(1) / real.sum(1)


def masked_max(x: Tensor, mask: Tensor | None) -> Tensor:
    """Largest value over the real tokens: (B, N, C) and (B, N) bool or None to (B, C)."""
    if mask is not None:
        x = x.masked_fill(~mask[:, :, None], -torch.inf)
    return x.amax(1)

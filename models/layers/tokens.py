"""What all token models share: checks of their input, positions, pooling over real tokens."""

from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from models.layers.tracing import is_traced

Pooling = Literal["mean", "max", "cls"]


class TokenModel(nn.Module):
    """A model of tokens, whose `head` reads the `features` of each sample.

    Args:
        config: a dataclass with the fields `vocab_size` and `seq_len`.
    """

    head: Any

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config: Any = config

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the logits (B, num_classes); arguments and errors as of `features`."""
        return self.head(self.features(tokens, mask))

    def features(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute what the head sees of each sample, pooled over the real tokens.

        Args:
            tokens: (B, N) int64 ids, N <= seq_len, or (B, 2, N) for two towers.
            mask: bool of the same shape, True for real tokens; None if all are. The ids of padding
                and its amount change nothing.

        Returns:
            (B, embed_dim), or (B, 4 * embed_dim) for two towers.

        Raises:
            ValueError: see `check`.
        """
        raise NotImplementedError

    def check(self, tokens: Tensor, mask: Tensor | None, *, towers: int = 1) -> None:
        """Refuse token ids and masks that no answer can be given for.

        Nothing is checked while the model is traced or a CUDA graph records it.

        Args:
            tokens: (B, N) int64 ids, or (B, towers, N) where one sample is several sequences.
            mask: bool of the same shape, True for real tokens; None if all are.
            towers: number of sequences of one sample.

        Raises:
            ValueError: a wrong shape or type, too long a sequence, an id outside the vocabulary, or
                a sequence without a real token.
        """
        if is_traced() or (tokens.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        vocab_size, seq_len = self.config.vocab_size, self.config.seq_len
        between, shape = (towers,) if towers > 1 else (), tuple(tokens.shape)
        if shape[1:-1] != between or len(shape) < 2 or not 1 <= shape[-1] <= seq_len:
            expected = ", ".join(["B", *map(str, between), f"1..{seq_len}"])
            raise ValueError(f"tokens must be ({expected}), got {shape}")
        if tokens.dtype != torch.int64:
            raise ValueError(f"tokens must be int64, got {tokens.dtype}")
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
    empty = (~mask.any(-1)).nonzero().squeeze(-1).tolist()
    if empty:
        raise ValueError(f"mask must have a real token in every sequence, got none in {empty[:10]}")


def sinusoidal_positions(seq_len: int, dim: int) -> Tensor:
    """Table of positions, PE[p, 2k] = sin(p / 10000^(2k / dim)), PE[p, 2k + 1] = cos(same).

    Args:
        seq_len: number of positions.
        dim: width of the table, even.

    Returns:
        (seq_len, dim) float64.

    Source: Vaswani et al. 2017, section 3.5.
    """
    positions = torch.arange(seq_len, dtype=torch.float64)[:, None]
    angles = positions / 10000 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)  # (seq_len, dim)


class SinusoidalPositions(nn.Module):
    """The table of `sinusoidal_positions`, rounded once to the precision that the model has.

    Where positions are not `used`, the table is zero, so that their order changes nothing.
    """

    table: Tensor

    def __init__(self, seq_len: int, dim: int, *, used: bool = True) -> None:
        super().__init__()
        self.used = used
        table = sinusoidal_positions(seq_len, dim).to(torch.get_default_dtype()) * used
        self.register_buffer("table", table, persistent=False)

    def forward(self, seq_len: int) -> Tensor:
        """The first positions, (seq_len, dim)."""
        return self.table[:seq_len]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # A float32 table turned into float64 would keep the error of float32.
        super()._apply(fn, recurse)
        self.table = sinusoidal_positions(*self.table.shape).to(self.table) * self.used
        return self


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the real tokens: (B, N, C) and (B, N) bool or None to (B, C)."""
    if mask is None:
        return x.mean(1)
    # Half precision can neither count beyond 256 or 2048 nor hold every sum.
    dtype = torch.promote_types(x.dtype, torch.float32)
    real = mask[:, :, None].to(dtype)
    if is_traced():  # runtimes multiply faster than they select and sum
        return ((real / real.sum(1, keepdim=True)).transpose(1, 2) @ x.to(dtype))[:, 0].to(x.dtype)
    total = x.masked_fill(~mask[:, :, None], 0.0).sum(1, dtype=dtype)
    return (total / real.sum(1)).to(x.dtype)


def masked_max(x: Tensor, mask: Tensor | None) -> Tensor:
    """Largest value over the real tokens: (B, N, C) and (B, N) bool or None to (B, C)."""
    if mask is not None:
        x = x.masked_fill(~mask[:, :, None], -torch.inf)
    return x.amax(1)


def pool(x: Tensor, mask: Tensor | None, pooling: Pooling) -> Tensor:
    """One vector per sample: (B, N, C) and (B, N) bool or None to (B, C).

    "mean" and "max" run over the real tokens; "cls" takes the first token, which must be real.
    """
    if pooling == "cls":
        return x[:, 0]
    return masked_mean(x, mask) if pooling == "mean" else masked_max(x, mask)

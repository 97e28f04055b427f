"""A data set of token sequences, kept without padding and padded batch by batch."""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """Sequences of different lengths in one array.

    Attributes:
        values: (T,) all tokens, of any integer type.
        offsets: (N + 1,) int64; sequence i is `values[offsets[i]:offsets[i + 1]]`.
    """

    values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, rows: Iterable[np.ndarray], dtype: type[np.unsignedinteger]) -> "Ragged":
        """Join rows of token ids, each (length,), as `dtype`."""
        arrays = [np.asarray(row, dtype) for row in rows]
        lengths = np.array([len(row) for row in arrays], np.int64)
        values = np.concatenate(arrays) if arrays else np.empty(0, dtype)
        return cls(values=values, offsets=np.concatenate(([0], lengths.cumsum())))

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """Tokens of one sequence: (length,)."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in each sequence: (N,) int64."""
        return np.diff(self.offsets)

    def take(self, indices: np.ndarray) -> "Ragged":
        """The sequences at these indices, in this order."""
        lengths = self.lengths[indices]
        offsets = np.concatenate(([0], lengths.cumsum()))
        # Position of each token taken: its place in the result, moved to where its row starts.
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[indices] - offsets[:-1], lengths)
        return Ragged(values=self.values[places], offsets=offsets)

    def padded(self, length: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
        """Pad to one length: tokens (N, length) int64 and mask (N, length) bool, True if real."""
        mask = np.arange(length) < self.lengths[:, None]
        tokens = np.full(mask.shape, pad, np.int64)
        tokens[mask] = self.values
        return tokens, mask


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSet:
    """Sequences of token ids with labels, as every token model reads them.

    Attributes:
        sequences: one `Ragged` of N sequences, or two for pairs.
        labels: (N,) int64 indices into `label_names`.
        label_names: names of the classes.
        vocab_size: ids lie in [0, vocab_size).
        seq_len: the longest sequence that the task allows.
        pad: id at places that the mask leaves out.
        description: what the set is.
    """

    sequences: tuple[Ragged, ...]
    labels: np.ndarray
    label_names: list[str]
    vocab_size: int
    seq_len: int
    pad: int
    description: str

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.labels)

    @property
    def towers(self) -> int:
        """Sequences of one sample: 2 for pairs, else 1."""
        return len(self.sequences)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in the longest sequence of each sample: (N,) int64."""
        return np.stack([part.lengths for part in self.sequences]).max(0)

    def take(self, indices: Sequence[int] | np.ndarray) -> "TokenSet":
        """The samples at these indices, in this order."""
        chosen = np.asarray(indices, np.int64)
        parts = tuple(part.take(chosen) for part in self.sequences)
        return dataclasses.replace(self, sequences=parts, labels=self.labels[chosen])

    def batch(
        self, indices: Sequence[int] | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pad some samples to the longest of them.

        Returns:
            tokens (B, N) int64, mask (B, N) bool with True for real tokens, labels (B,) int64;
            of pairs, tokens and mask are (B, 2, N).
        """
        chosen = self.take(indices)
        longest = int(chosen.lengths.max(initial=1))
        padded = [part.padded(longest, self.pad) for part in chosen.sequences]
        if self.towers == 1:
            return *padded[0], chosen.labels
        tokens, mask = (np.stack(arrays, axis=1) for arrays in zip(*padded, strict=True))
        return tokens, mask, chosen.labels

    def digest(self) -> str:
        """The sha256 of all tokens and labels, whatever integer type holds them."""
        state = hashlib.sha256()
        for part in self.sequences:
            state.update(part.values.astype("<i4").tobytes())
            state.update(part.offsets.astype("<i8").tobytes())
        state.update(self.labels.astype("<i8").tobytes())
        return state.hexdigest()

"""A data set of texts, read one by one."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSet:
    """Texts with names and, where known, labels; what `ImageSet` is for images.

    Attributes:
        names: one name per text, for reports.
        labels: (N,) int64 indices into `label_names`, or None.
        label_names: names of the classes, or None.
        description: what the set is; says so where it is only a part of a known one.
        reader: gives text i; see `read`.
    """

    names: list[str]
    labels: np.ndarray | None
    label_names: list[str] | None
    description: str
    reader: Callable[[int], str]

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        """All texts in order."""
        return (self.read(index) for index in range(len(self)))

    def read(self, index: int) -> str:
        """Read one text; it holds more than blanks.

        Raises:
            DataError: its file cannot be read or holds no text; the message names it.
        """
        return self.reader(index)

    def take(self, indices: Sequence[int] | np.ndarray) -> "TextSet":
        """The texts at these indices, in this order."""
        chosen = [int(index) for index in indices]
        return TextSet(
            names=[self.names[index] for index in chosen],
            labels=None if self.labels is None else self.labels[chosen],
            label_names=self.label_names,
            description=self.description,
            reader=lambda index: self.reader(chosen[index]),
        )

    def changed(self, change: Callable[[str], str]) -> "TextSet":
        """The same set with every text changed when it is read."""
        return dataclasses.replace(self, reader=lambda index: change(self.reader(index)))

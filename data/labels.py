"""Labels by name: how a class folder, a text label or an index finds a class of the model."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from data.errors import ClassMismatch, DataError

ClassMap = Mapping[str, str] | Literal["index"]
"""By class of the data, the class of the model; or "index": class i of the data is the model's
class i, whatever the two are called."""

_SHOWN = 200  # characters of a name in a message


def normalize(name: str) -> str:
    """Fold case and write blanks, `_` and `/` as `-`, e.g. "T-shirt/top" as "t-shirt-top"."""
    return re.sub(r"[\s/_-]+", "-", name.strip().casefold())


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The classes of a model, and how the classes of data are found among them.

    Attributes:
        label_names: names in order of index; None where data alone say what their classes are.
        class_map: what the user says of classes that are called otherwise in the data.
    """

    label_names: Sequence[str] | None = None
    class_map: ClassMap | None = None

    @property
    def names(self) -> list[str] | None:
        """The names, for a data set of these classes."""
        return None if self.label_names is None else list(self.label_names)

    def index(self, name: str) -> int:
        """Find a class by its name, else read the name as an integer index.

        Never by sort order, which changes with the classes that happen to be present.

        Raises:
            ValueError: the name is neither a known label nor an index in range, or that of
                several classes.
        """
        index = self._named(name)
        if index is not None:
            return index
        mapped = self._mapped(name)
        if not re.fullmatch(r"\d{1,9}", mapped):
            raise ValueError(f"{mapped[:_SHOWN]!r} is neither a label name nor an index")
        if self.label_names is not None and int(mapped) >= len(self.label_names):
            count = len(self.label_names)
            raise ValueError(f"label {mapped} is out of range: there are {count} classes")
        return int(mapped)

    def find(
        self, values: Sequence[str], where: Callable[[int], str]
    ) -> tuple[np.ndarray, list[str] | None]:
        """Read labels that are spelled out.

        Args:
            values: a name or an index for each of N samples.
            where: what goes before the message about sample i.

        Returns:
            Labels (N,) int64, and what the data call the classes that have samples, in the model's
            order; None where any of them is only an index.

        Raises:
            ClassMismatch: a value names no class of the model.
            DataError: a value is out of range.
        """
        found: dict[str, int] = {}
        for place, value in enumerate(values):
            if value not in found:
                try:
                    found[value] = self.index(value)
                except ValueError as error:
                    raise self._refusal(f"{where(place)}{error}", value, values) from error
        named = bool(found) and all(self._named(value) is not None for value in found)
        names = sorted(found, key=lambda value: found[value]) if named else None
        return np.array([found[value] for value in values], np.int64), names

    def translate(
        self, labels: np.ndarray | None, own_names: Sequence[str], source: str
    ) -> tuple[np.ndarray | None, list[str] | None]:
        """Turn indices into the classes that data name into the model's.

        Args:
            labels: (N,) int64 indices into `own_names`, or None.
            own_names: what the data call their classes.
            source: what holds the data, for messages.

        Returns:
            As `find`; all names, in the data's order.

        Raises:
            ClassMismatch: classes that have samples are not the model's.
        """
        names = list(own_names)
        if labels is None or self.label_names is None:
            return labels, None if labels is None else names
        alike = _indices(names)
        table, named = np.zeros(len(names), np.int64), True
        for own in np.unique(labels).tolist():
            shared = len(alike[normalize(names[own])]) > 1
            try:
                table[own], by_name = self._like(names[own], own, shared=shared)
            except ValueError as error:
                reason = f"{source}: the class {error}"
                raise ClassMismatch(reason, names, self.label_names) from error
            named &= by_name
        return table[labels], names if named else None

    def _like(self, name: str, place: int, *, shared: bool) -> tuple[int, bool]:
        """The model's class of one of the data, and whether it was found by its name."""
        count = len(self.label_names or ())
        if self.class_map == "index":
            if place >= count:
                raise ValueError(f"{name[:_SHOWN]!r} has the index {place} of {count} classes")
            return place, True
        index = self._named(name, place)
        if shared and index != place:
            raise ValueError(f"{name[:_SHOWN]!r} is the name of several classes of the data")
        return (self.index(name), False) if index is None else (index, True)

    def _named(self, name: str, place: int | None = None) -> int | None:
        """The index of a class by its name; where several have it, that at the same place."""
        mapped = self._mapped(name)
        found = self._by_name.get(normalize(mapped), [])
        if len(found) > 1:
            same = [i for i in found if (self.label_names or ())[i] == mapped]
            found = [i for i in found if i == place] or same or found
        if len(found) > 1:
            raise ValueError(f"{mapped[:_SHOWN]!r} is the name of several classes of the model")
        return found[0] if found else None

    def _mapped(self, name: str) -> str:
        """A name of the data as the user wants it read."""
        return self._map.get(normalize(name), name)

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        return _indices(self.label_names or ())

    @cached_property
    def _map(self) -> dict[str, str]:
        entries = self.class_map.items() if isinstance(self.class_map, Mapping) else ()
        return {normalize(own): label for own, label in entries}

    def _refusal(self, message: str, value: str, values: Sequence[str]) -> DataError:
        if self.label_names is None or re.fullmatch(r"-?\d{1,9}", value):
            return DataError(message)
        return ClassMismatch(message, list(dict.fromkeys(values)), self.label_names)


def _indices(names: Sequence[str]) -> dict[str, list[int]]:
    """The indices of each normalized name."""
    found: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        found.setdefault(normalize(name), []).append(index)
    return found

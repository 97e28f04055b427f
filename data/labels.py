"""Labels by name: how a class folder or a text label finds its index."""

import re
from collections.abc import Sequence
from functools import lru_cache

_SHOWN = 200  # characters of a name in a message


def normalize(name: str) -> str:
    """Fold case and write blanks and `/` as `-`, e.g. "T-shirt/top" as "t-shirt-top"."""
    return re.sub(r"[\s/]+", "-", name.strip().casefold())


@lru_cache
def _indices(label_names: tuple[str, ...]) -> dict[str, int]:
    """The first index of each normalized name."""
    known = [normalize(label) for label in label_names]
    return {name: i for i, name in reversed([*enumerate(known)])}


def label_index(name: str, label_names: Sequence[str] | None) -> int:
    """Find the index of a class by its name, else read the name as an integer index.

    Never by sort order, which changes with the classes that happen to be present.

    Raises:
        ValueError: the name is neither a known label nor an index in range.
    """
    index = _indices(tuple(label_names or ())).get(normalize(name))
    if index is not None:
        return index
    if not re.fullmatch(r"\d{1,9}", name):
        raise ValueError(f"{name[:_SHOWN]!r} is neither a label name nor an index")
    if label_names is not None and int(name) >= len(label_names):
        raise ValueError(f"label {name} is out of range: there are {len(label_names)} classes")
    return int(name)

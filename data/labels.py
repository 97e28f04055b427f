"""Labels by name: how a class folder or a text label finds its index."""

import re
from collections.abc import Sequence


def normalize(name: str) -> str:
    """Fold case and write blanks and `/` as `-`, e.g. "T-shirt/top" as "t-shirt-top"."""
    return re.sub(r"[\s/]+", "-", name.strip().casefold())


def label_index(name: str, label_names: Sequence[str] | None) -> int:
    """Find the index of a class by its name, else read the name as an integer index.

    Never by sort order, which changes with the classes that happen to be present.

    Raises:
        ValueError: the name is neither a known label nor an index in range.
    """
    known = [normalize(label) for label in label_names or ()]
    if normalize(name) in known:
        return known.index(normalize(name))
    if not re.fullmatch(r"\d{1,9}", name):
        raise ValueError(f"{name!r} is neither a label name nor an index")
    if label_names is not None and int(name) >= len(label_names):
        raise ValueError(f"label {name} is out of range: there are {len(label_names)} classes")
    return int(name)

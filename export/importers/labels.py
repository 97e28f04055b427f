"""Names of classes that an ONNX file tells in its metadata."""

import ast
from collections.abc import Mapping

_KEYS = ("names", "labels", "classes", "class_names", "id2label")
_MAX_CHARS = 1_000_000


def labels_in(metadata: Mapping[str, str], classes: int | None) -> list[str]:
    """The names of the classes, in order of index; none where no entry names every class.

    Args:
        metadata: entries under `names`, `labels`, `classes`, `class_names` or `id2label`: a list,
            or names by index, as JSON or in Python's notation, or one name a line.
        classes: how many there are, where that is known.
    """
    for key in _KEYS:
        found = _names(metadata.get(key, ""))
        alike = len(set(found)) < len(found) or not all(0 < len(name) <= 256 for name in found)
        if len(found) >= 2 and not alike and classes in (None, len(found)):
            return found
    return []


def _names(text: str) -> list[str]:
    text = text[:_MAX_CHARS].strip()
    try:
        found = ast.literal_eval(text) if text.startswith(("[", "{", "(")) else text.splitlines()
        if isinstance(found, dict):
            found = [found[index] for index in sorted(found, key=int)]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return []
    return [str(name).strip() for name in found] if isinstance(found, list | tuple) else []

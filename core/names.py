"""Names in messages: what to answer to an unknown one, many of them, and how sentences end."""

import difflib
from collections.abc import Iterable, Sequence

_SHOWN = 64  # characters of a name; comparing takes the square of them
_LONGER = 3  # names that begin with what was given


def nearest(name: object, known: Iterable[str], *, prefix: str = "") -> str:
    """The hint of an error message: the known name that is most alike, or all of them.

    Args:
        name: what was given.
        known: the names that exist.
        prefix: what goes before a known name in full, such as "model.".
    """
    known, given = list(known), str(name)[:_SHOWN]
    longer = [one for one in known if given and one.startswith(given)][:_LONGER]
    close = longer or difflib.get_close_matches(given, known, n=1)
    hint = " or ".join(repr(prefix + one) for one in close)
    return f"did you mean {hint}?" if hint else f"known: {', '.join(known)}"


def sentence(text: str) -> str:
    """The text with a full stop, unless it ends with a mark of its own, such as a hint's."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def listed(names: Sequence[str], most: int) -> str:
    """Names one after the other, "cat, dog, … (1,000 in all)" where there are more than `most`."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])}, … ({len(names):,} in all)"

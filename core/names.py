"""What to answer to an unknown name."""

import difflib
from collections.abc import Iterable

_SHOWN = 64  # characters of a name; comparing takes the square of them


def nearest(name: object, known: Iterable[str], *, prefix: str = "") -> str:
    """The hint of an error message: the known name that is most alike, or all of them.

    Args:
        name: what was given.
        known: the names that exist.
        prefix: what goes before a known name in full, such as "model.".
    """
    known = list(known)
    close = difflib.get_close_matches(str(name)[:_SHOWN], known, n=1)
    return f"did you mean {prefix + close[0]!r}?" if close else f"known: {', '.join(known)}"

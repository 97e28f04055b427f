"""Names in messages: what to answer to an unknown one, many of them, and how sentences end."""

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

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


def broken_rules(error: "ValidationError") -> list[tuple[str, str]]:
    """The rules that a document breaks: the field, with dots, and what is wrong with it."""
    found = error.errors(include_url=False, include_context=False)
    return [(".".join(map(str, one["loc"])), _rule(one["msg"], one["input"])) for one in found]


def _rule(message: str, given: object) -> str:
    """A rule as our own messages have it; texts are not repeated, since they may be secret."""
    rule = message.removeprefix("Value error, ")
    if not rule.startswith("Input should "):
        return rule
    told = f", got {str(given)[:_SHOWN]}" if isinstance(given, int | float) else ""
    return f"must {rule.removeprefix('Input should ')}{told}"


def sentence(text: str) -> str:
    """The text with a full stop, unless it ends with a mark of its own, such as a hint's."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def listed(names: Sequence[str], most: int) -> str:
    """Names one after the other, "cat, dog, … (1,000 in all)" where there are more than `most`."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])}, … ({len(names):,} in all)"

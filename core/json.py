"""JSON as its standard has it: no NaN, no Infinity, and no key twice in an object."""

import json
from typing import Any

_SHOWN = 64  # characters of a key in a message
_LIST, _KEY = 4, 20  # times what a number takes to read and to check


class JsonError(ValueError):
    """A text that is not JSON; the message says why and repeats no value of it."""


class TooManyItems(JsonError):
    """A document that holds more, or is deeper, than its reader allows."""


def read_json(text: str | bytes, *, most: int | None = None, levels: int | None = None) -> Any:
    """Read a JSON document.

    Args:
        text: the document; bytes are UTF-8.
        most: items of a stranger's document: each value counts as one, a list or an object as 4
            more, a key as 20.
        levels: of lists and objects inside one another.

    Raises:
        JsonError: it breaks a rule.
        TooManyItems: items are counted before it is read, for reading holds the interpreter.
    """
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        if most is not None and _has_more(text, most):
            raise TooManyItems(f"more than {most:,} items")
        value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_distinct)
        if levels is not None and _is_deeper(value, levels):
            raise TooManyItems(f"more than {levels} levels")
        return value
    except TooManyItems:
        raise
    except (JsonError, json.JSONDecodeError) as error:
        raise JsonError(str(error)) from None
    except RecursionError:
        raise JsonError("too many levels") from None
    except ValueError:  # bytes that are not text, a number too long to read
        raise JsonError("not JSON text") from None


def _has_more(text: str, most: int) -> bool:
    """Whether a document holds more items; only what stands outside of strings counts."""
    if _count(text) <= most:  # strings included, which is fast and nearly always enough
        return False
    text = text.replace("\\\\", "").replace('\\"', "")  # now every quote begins or ends a string
    if text.count('"') > 2 * most:
        return True
    return _count("".join(text.split('"')[::2])) > most


def _count(text: str) -> int:
    lists = text.count("[") + text.count("{")
    return text.count(",") + _LIST * lists + _KEY * text.count(":")


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value] if isinstance(value, list | dict) else []
    for _ in range(levels):
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for values in inside for each in values if isinstance(each, list | dict)]
    return bool(level)


def _refuse(constant: str) -> None:
    raise JsonError(f"{constant} is not JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; of a key that is there twice, readers would not agree which one counts."""
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            # In ASCII: half a surrogate, which JSON can name, cannot be sent back.
            raise JsonError(f"the key {ascii(key[:_SHOWN])} must not appear twice in an object")
        fields[key] = value
    return fields

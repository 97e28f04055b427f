"""JSON as its standard has it: no NaN, no Infinity, and no key twice in an object."""

import json
from typing import Any

_SHOWN = 64  # characters of a key in a message


class JsonError(ValueError):
    """A text that is not JSON; the message says why and repeats no value of it."""


def read_json(text: str | bytes) -> Any:
    """Read a JSON document.

    Raises:
        JsonError: it breaks a rule.
    """
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_distinct)
    except (JsonError, json.JSONDecodeError) as error:
        raise JsonError(str(error)) from None
    except RecursionError:
        raise JsonError("too many levels") from None
    except ValueError:  # bytes that are not text, a number too long to read
        raise JsonError("not JSON text") from None


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

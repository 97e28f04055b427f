"""JSON as its standard has it: no NaN, no Infinity."""

import json
from typing import Any

from service.errors import ApiError


def parse_json(text: str | bytes, what: str) -> Any:
    """Read JSON that a client sent.

    Args:
        text: the document.
        what: its name in the request, for the message.

    Raises:
        ApiError: 400 invalid_json.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        reason = error if isinstance(error, json.JSONDecodeError | _NotJson) else "not JSON text"
        message = f"The field `{what}` is not valid JSON: {reason}."
        raise ApiError(400, "invalid_json", message) from error


class _NotJson(ValueError):
    pass


def _refuse(constant: str) -> None:
    raise _NotJson(f"{constant} is not JSON")

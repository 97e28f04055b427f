"""JSON as its standard has it: no NaN, no Infinity; and no key twice in an object."""

import json
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request

from service.http.errors import ApiError

_SHOWN = 64  # characters of a key in a message


def require_json(request: Request) -> None:
    """Refuse a body that does not say that it is JSON.

    Raises:
        ApiError: 415 wrong_content_type.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = "The body must be JSON, with the content type application/json."
        raise ApiError(415, "wrong_content_type", message)


def parse_json(text: str | bytes, what: str) -> Any:
    """Read JSON that a client sent.

    Args:
        text: the document.
        what: its name in the request, for the message.

    Raises:
        ApiError: 400 invalid_json.
    """
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        reason = error if isinstance(error, json.JSONDecodeError | _NotJson) else "not JSON text"
        message = f"The field `{what}` is not valid JSON: {reason}."
        raise ApiError(400, "invalid_json", message) from error


class _NotJson(ValueError):
    pass


def _refuse(constant: str) -> None:
    raise _NotJson(f"{constant} is not JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; of a key that is there twice, readers would not agree which one counts."""
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            # Half a surrogate, which JSON can name, could not be told to the client.
            raise _NotJson(f"the key {ascii(key[:_SHOWN])} must not appear twice in an object")
        fields[key] = value
    return fields


def broken_rules(error: ValidationError) -> list[dict[str, str]]:
    """Every rule that a document breaks: the field, with dots, and what is wrong with it."""
    return [
        {
            "field": ".".join(map(str, problem["loc"])),
            "message": problem["msg"].removeprefix("Value error, "),
        }
        for problem in error.errors(include_url=False, include_context=False)
    ]

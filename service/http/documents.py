"""Documents and texts that a client sent, and what is wrong with them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import to_thread
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from core import names
from core.json import JsonError, TooManyItems, read_json
from core.names import sentence
from service.http.refusal import ApiError

MAX_DETAILS = 16
"""Broken rules that an error lists at most."""
_MAX_FIELD = 200  # characters of a field's name in an error
_SHORT = 65_536  # bytes that are read within a millisecond
_Model = TypeVar("_Model", bound=BaseModel)
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Limit:
    """How large a document may be: in bytes, and in items as `read_json` counts them."""

    size: int
    items: int = 20_000


SMALL_LIMIT = Limit(65_536)
SPEC_LIMIT = Limit(1_000_000)
TEXTS_LIMIT = Limit(2_000_000)


def media_type(request: Request) -> str:
    """The type that a body has by its header, in lower case and without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def require_type(request: Request, *known: str) -> None:
    """Refuse a body that is not said to be of a known type; `""` is one that says nothing.

    Raises:
        ApiError: 415 wrong_content_type.
    """
    if media_type(request) not in known:
        names = " or ".join(name for name in known if name)
        message = f"The body must have the content type {names}."
        raise ApiError(415, "wrong_content_type", message)


async def unhurried(size: int, read: Callable[[], _Read]) -> _Read:
    """What `read` gives; in a thread for a document of many bytes, so that others have turns."""
    return read() if size <= _SHORT else await to_thread.run_sync(read)


def check_size(text: str | bytes, what: str, limit: Limit) -> None:
    """Refuse a long document.

    Raises:
        ApiError: 413 body_too_large.
    """
    if len(text) > limit.size:
        message = f"The field `{what}` may have at most {limit.size / 1_000_000:g} MB."
        raise ApiError(413, "body_too_large", message)


def parse_json(text: str | bytes, what: str, limit: Limit) -> Any:
    """Read JSON that a client sent.

    Args:
        text: the document.
        what: its name in the request, for the message.
        limit: refused before it is read.

    Raises:
        ApiError: 400 invalid_json, 413 body_too_large.
    """
    check_size(text, what, limit)
    try:
        return read_json(text, most=limit.items)
    except TooManyItems as error:
        message = f"The field `{what}` holds too many values and keys: {error}."
        raise ApiError(413, "body_too_large", message) from error
    except JsonError as error:
        message = f"The field `{what}` is not valid JSON: {error}."
        raise ApiError(400, "invalid_json", message) from error


def parse_body(model: type[_Model], content: bytes, limit: Limit) -> _Model:
    """A body in JSON.

    Raises:
        ApiError: 400 invalid_json; 413 body_too_large; 422 invalid_body with broken rules in
            `details`.
    """
    value = parse_json(content, "body", limit)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = broken_rules(error)
    first = problems[0]
    place = first["field"] or "body"
    message = sentence(f"The body is not acceptable: {place}: {first['message']}")
    raise ApiError(422, "invalid_body", message, problems)


def broken_rules(error: ValidationError) -> list[dict[str, str]]:
    """The first rules that a document breaks: the field, with dots, and what is wrong with it."""
    found = names.broken_rules(error)[:MAX_DETAILS]
    return [{"field": field[:_MAX_FIELD], "message": message} for field, message in found]

"""Documents in JSON that a client sent, and what is wrong with them."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from core.json import JsonError, read_json
from service.http.errors import ApiError

_MAX_DETAILS = 16
_Model = TypeVar("_Model", bound=BaseModel)


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


def parse_json(text: str | bytes, what: str) -> Any:
    """Read JSON that a client sent.

    Args:
        text: the document.
        what: its name in the request, for the message.

    Raises:
        ApiError: 400 invalid_json.
    """
    try:
        return read_json(text)
    except JsonError as error:
        message = f"The field `{what}` is not valid JSON: {error}."
        raise ApiError(400, "invalid_json", message) from error


def parse_body(model: type[_Model], content: bytes) -> _Model:
    """A body in JSON.

    Raises:
        ApiError: 400 invalid_json; 422 invalid_body with broken rules in `details`.
    """
    value = parse_json(content, "body")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = broken_rules(error)
    first = problems[0]
    message = f"The body is not acceptable: {first['field'] or 'body'}: {first['message']}."
    raise ApiError(422, "invalid_body", message, problems[:_MAX_DETAILS])


def broken_rules(error: ValidationError) -> list[dict[str, str]]:
    """Every rule that a document breaks: the field, with dots, and what is wrong with it."""
    return [
        {
            "field": ".".join(map(str, problem["loc"])),
            "message": problem["msg"].removeprefix("Value error, "),
        }
        for problem in error.errors(include_url=False, include_context=False)
    ]

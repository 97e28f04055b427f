"""Query parameters: what is not understood is refused, never ignored."""

import functools
import logging
import re
from collections.abc import Awaitable, Callable, Collection

from sqlalchemy.exc import OperationalError, TimeoutError
from starlette.requests import Request
from starlette.responses import Response

from service.http.errors import ApiError
from service.http.openapi import query_names

logger = logging.getLogger(__name__)

_Endpoint = Callable[[Request], Awaitable[Response]]


def strict(endpoint: _Endpoint) -> _Endpoint:
    """An endpoint that refuses query parameters which its description does not name.

    It answers 503 while the table of evaluations does not.

    Args:
        endpoint: marked by `service.http.openapi.describe`, with 422 and 503 among its errors.
    """
    known = query_names(endpoint)

    @functools.wraps(endpoint)
    async def checked(request: Request) -> Response:
        """Check, then answer."""
        _check_names(request, known)
        try:
            return await endpoint(request)
        except (OperationalError, TimeoutError) as error:  # it restarts, or all connections wait
            logger.error(
                "The table of evaluations does not answer: %s", type(getattr(error, "orig", error))
            )
            message = "The table of evaluations does not answer now; try again later."
            raise ApiError(503, "unavailable", message, headers={"Retry-After": "5"}) from error

    return checked


def seconds(request: Request, name: str, most: float) -> float:
    """A number of seconds from 0 to `most`, 0 when it is not given.

    Raises:
        ApiError: 422 invalid_query.
    """
    text = request.query_params.get(name, "0")
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text) or float(text) > most:
        raise invalid_query(f"{name} must be a number of seconds from 0 to {most:.0f}")
    return float(text)


def integer(request: Request, name: str, least: int, most: int) -> int | None:
    """A whole number, or None when it is not given.

    Raises:
        ApiError: 422 invalid_query.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,19}", text) or not least <= int(text) <= most:
        raise invalid_query(f"{name} must be a whole number from {least} to {most}")
    return int(text)


def word(request: Request, name: str, known: Collection[str] | None = None) -> str | None:
    """A text, one of `known` where there is a list, or None when it is not given.

    Raises:
        ApiError: 422 invalid_query.
    """
    text = request.query_params.get(name)
    if text is not None and known is not None and text not in known:
        raise invalid_query(f"{name} must be one of {', '.join(known)}")
    if text is not None and not text.isprintable():
        raise invalid_query(f"{name} must be printable text")
    return text


def invalid_query(message: str) -> ApiError:
    """The refusal of a query parameter."""
    return ApiError(422, "invalid_query", f"Query parameter {message}.")


def _check_names(request: Request, known: Collection[str]) -> None:
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in known:
            names = f"; known: {', '.join(known)}" if known else ""
            raise invalid_query(f"{name[:64]!r} is not known here{names}")
        if name in seen:
            raise invalid_query(f"{name} may be given once")
        seen.add(name)

"""One shape for every error: ``{"error": {"code", "message", "details"}}``."""

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import OperationalError, TimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from core.names import sentence
from service.http.refusal import ApiError

logger = logging.getLogger(__name__)

_MAX_MESSAGE = 2_000  # characters
_MAX_DETAILS = 50_000  # bytes

# Codes of errors that somebody else answered, such as Starlette's router.
_FOREIGN = {
    400: ("bad_request", "The request could not be understood."),
    404: ("not_found", "There is nothing at this address."),
    405: ("method_not_allowed", "This address does not answer this method."),
    503: ("unavailable", "The service cannot answer now; try again later."),
}
_INTERNAL = ("internal_error", "An unexpected error has occurred; it was logged.")
# The HTTP library of tritonclient, which cannot print an exception whose error is an object.
_SENTENCES_ONLY = "python/gevent-http-client"


def error_response(error: ApiError, request: Request) -> JSONResponse:
    """The response that shows an error in the agreed shape.

    The Open Inference Protocol has ``{"error": "sentence"}`` instead. Most of its clients show
    either; one that cannot gets the sentence, with `code` and `details` beside it.
    """
    agent = request.headers.get("user-agent", "")
    details = error.details
    if len(json.dumps(details)) > _MAX_DETAILS:
        details = None
    # Half a surrogate, which JSON can name, cannot be sent back.
    message = error.message[:_MAX_MESSAGE].encode("utf-8", "replace").decode()
    body: dict[str, Any] = {"code": error.code, "details": details}
    if agent.startswith(_SENTENCES_ONLY) and request.url.path.startswith("/v2"):
        body |= {"error": message}
    else:
        body = {"error": body | {"message": message}}
    return JSONResponse(body, status_code=error.status, headers=error.headers)


def foreign_error(status: int, headers: Mapping[str, str] | None = None) -> ApiError:
    """The error to show for a bare status; its original text may hold paths and is dropped."""
    if status not in _FOREIGN and status < 500:
        phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Error"
        code, message = phrase.lower().replace(" ", "_").replace("-", "_"), f"{phrase}."
    else:
        code, message = _FOREIGN.get(status, _INTERNAL)
    keep = {key: value for key, value in (headers or {}).items() if key in ("allow", "retry-after")}
    if status == 503:
        keep.setdefault("retry-after", "1")
    return ApiError(status, code, message, headers=keep)


async def _api_error(request: Request, error: Any) -> Response:
    return error_response(error, request)


async def _http_error(request: Request, error: Any) -> Response:
    """Errors of Starlette; OPTIONS is answered with the methods of an address."""
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if error.status_code == 405:
        headers["allow"] = ", ".join(sorted({"OPTIONS", *_methods(request)}))
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"allow": headers["allow"]})
    return error_response(foreign_error(error.status_code, headers), request)


def _methods(request: Request) -> set[str]:
    """What the routes of an address answer."""
    routes = [
        route for route in request.app.routes if route.matches(request.scope)[0] != Match.NONE
    ]
    return {method for route in routes for method in route.methods}


async def _validation_error(request: Request, error: Any) -> Response:
    """Query parameters that FastAPI does not accept; it reads nothing else here."""
    problem = error.errors()[0]
    message = sentence(f"Query parameter {problem['loc'][-1]}: {problem['msg']}")
    return error_response(invalid_query(message), request)


async def _database_error(request: Request, error: Any) -> Response:
    """The table of evaluations restarts, or all of its connections are taken."""
    reason = type(getattr(error, "orig", error))
    logger.error("The table of evaluations does not answer: %s", reason)
    message = "The table of evaluations does not answer now; try again later."
    headers = {"retry-after": "5"}
    return error_response(ApiError(503, "unavailable", message, headers=headers), request)


def invalid_query(message: str) -> ApiError:
    """The refusal of a query parameter."""
    return ApiError(422, "invalid_query", message)


HANDLERS: dict[Any, Any] = {
    ApiError: _api_error,
    HTTPException: _http_error,
    RequestValidationError: _validation_error,
    OperationalError: _database_error,
    TimeoutError: _database_error,
}
"""For `FastAPI(exception_handlers=...)`."""

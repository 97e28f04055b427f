"""One shape for every error: ``{"error": {"code", "message", "details"}}``."""

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

# Codes of errors that somebody else answered (Starlette's router, BentoML).
_FOREIGN = {
    400: ("bad_request", "The request could not be understood."),
    404: ("not_found", "There is nothing at this address."),
    405: ("method_not_allowed", "This address does not answer this method."),
    413: ("body_too_large", "The request's body is too large."),
    415: ("unsupported_media_type", "The content type is not supported here."),
    422: ("not_acceptable", "The request is well formed but not acceptable."),
    429: ("too_many_requests", "Too many requests; try again later."),
    503: ("unavailable", "The service cannot answer now; try again later."),
    504: ("timeout", "The answer took too long."),
}
_INTERNAL = ("internal_error", "An unexpected error has occurred; it was logged.")


class ApiError(Exception):
    """An answer other than success, shown to the client as it is.

    Args:
        status: HTTP status.
        code: stable word for programs, such as ``unknown_model``.
        message: sentence for people; free of paths and of what the server knows of itself.
        details: JSON value with more about it.
        headers: further response headers, such as ``Retry-After``.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = details
        self.headers = dict(headers or {})


def error_response(error: ApiError) -> JSONResponse:
    """The response that shows an error in the agreed shape."""
    body = {"code": error.code, "message": error.message, "details": error.details}
    return JSONResponse({"error": body}, status_code=error.status, headers=error.headers)


async def handle_api_error(_: Request, error: Exception) -> JSONResponse:
    """Starlette's exception handler for ``ApiError``."""
    if not isinstance(error, ApiError):
        raise error
    return error_response(error)


def foreign_error(status: int, headers: Mapping[str, str] | None = None) -> ApiError:
    """The error to show for a bare status; its original text may hold paths and is dropped."""
    if status not in _FOREIGN and status < 500:
        phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Error"
        code, message = phrase.lower().replace(" ", "_").replace("-", "_"), f"{phrase}."
    else:
        code, message = _FOREIGN.get(status, _INTERNAL)
    keep = {key: value for key, value in (headers or {}).items() if key in ("allow", "retry-after")}
    if status in (429, 503):
        keep.setdefault("retry-after", "1")
    return ApiError(status, code, message, headers=keep)


def _is_ours(body: bytes) -> bool:
    try:
        error = json.loads(body)["error"]
        return set(error) == {"code", "message", "details"}
    except (ValueError, KeyError, TypeError):
        return False


class ErrorShape:
    """Outermost ASGI middleware: gives every error answer the agreed shape.

    Errors of the inner application are held back until complete, and replaced unless they have
    the shape already. An exception becomes an ``ApiError``'s answer, or a 500 that is logged.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = _Answer(send)
        try:
            await self.app(scope, receive, answer.send)
        except Exception as error:
            if answer.started:
                raise
            if not isinstance(error, ApiError):
                state = scope.get("state", {})
                request = (scope["method"], state.get("route"), state.get("request_id"))
                logger.exception("Exception on %s %s, request %s", *request)
                error = foreign_error(500)
            await error_response(error)(scope, receive, send)
            return
        if answer.start is not None:
            await answer.finish(scope, receive)


class _Answer:
    """Passes a good answer on at once and keeps an error until its body is known."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._body = bytearray()
        self.start: Message | None = None
        self.started = False

    async def send(self, message: Message) -> None:
        """Take one message of the inner application."""
        if message["type"] == "http.response.start" and message["status"] >= 400:
            self.start = message
        elif self.start is not None and message["type"] == "http.response.body":
            self._body += message.get("body", b"")
        else:
            self.started = True
            await self._send(message)

    async def finish(self, scope: Scope, receive: Receive) -> None:
        """Send the error that was kept, if there is one."""
        if self.start is None:
            return
        if _is_ours(bytes(self._body)):
            await self._send(self.start)
            await self._send({"type": "http.response.body", "body": bytes(self._body)})
            return
        headers = MutableHeaders(raw=list(self.start["headers"]))
        error = foreign_error(self.start["status"], dict(headers.items()))
        await error_response(error)(scope, receive, self._send)

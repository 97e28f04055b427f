"""What a request may bring and what a browser may do: ASGI middleware."""

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.errors import ApiError

# Everything comes from here, nothing inline: a hostile label or file name cannot run.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_SECURITY_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class BodyLimit:
    """Refuses a body of more than `max_bytes` with 413, its length announced or not.

    A body that is not complete after `timeout_s` seconds is refused with 408. The inner
    application sees a refusal as an ``ApiError`` from `receive`, so a chunked body is never read
    further than the limit.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, *, timeout_s: float) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.max_bytes:
            raise self._too_large()
        received, complete = 0, False
        deadline = asyncio.get_running_loop().time() + self.timeout_s

        async def counted() -> Message:
            """`receive`, within both limits."""
            nonlocal received, complete
            try:
                async with asyncio.timeout_at(None if complete else deadline):
                    message = await receive()
            except TimeoutError as error:
                text = f"The body was not complete after {self.timeout_s:g} s."
                raise ApiError(408, "upload_timeout", text) from error
            received += len(message.get("body", b""))
            if received > self.max_bytes:
                raise self._too_large()
            complete = not message.get("more_body", False)
            return message

        await self.app(scope, counted, send)

    def _too_large(self) -> ApiError:
        limit = f"{self.max_bytes / 1_000_000:g} MB"
        return ApiError(413, "body_too_large", f"A request's body may have at most {limit}.")


class SecurityHeaders:
    """Adds the security headers to every answer that does not set its own."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            """`send`, with the headers added to the first message."""
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, with_headers)

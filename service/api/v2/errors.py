"""Errors for a client that can read nothing but a sentence.

The protocol has ``{"error": "sentence"}`` where this service has an object. Most clients show
either; tritonclient joins the error to a string, and its exception cannot even be printed when it
is an object. So that client, known by the name of its HTTP library, gets the sentence as `error`,
with `code` and `details` beside it.
"""

import json
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_AGENT = "python/gevent-http-client"


class PlainErrors:
    """ASGI middleware outside of `service.http.errors.ErrorShape`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        agent = Headers(scope=scope).get("user-agent", "") if scope["type"] == "http" else ""
        if not (agent.startswith(_AGENT) and scope["path"].startswith("/v2")):
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        body = bytearray()

        async def plain(message: Message) -> None:
            """`send`, and an error is rewritten when it is complete."""
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] >= 400:
                start = message
            elif start is None:
                await send(message)
            else:
                body.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    await _send_plain(send, start, bytes(body))

        await self._app(scope, receive, plain)


async def _send_plain(send: Send, start: Message, body: bytes) -> None:
    error: dict[str, Any] = json.loads(body)["error"]
    plain = {"error": error["message"], "code": error["code"], "details": error["details"]}
    text = json.dumps(plain).encode()
    headers = MutableHeaders(raw=start["headers"])
    headers["content-length"] = str(len(text))
    await send(start)
    await send({"type": "http.response.body", "body": text})

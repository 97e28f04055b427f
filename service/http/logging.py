"""One line for every request, and its figures: ASGI middleware.

Query strings, bodies and keys are never written, and a path only as its route's template.
"""

import logging
import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.callers import caller_of
from service.logs import FIELDS
from service.metrics import Metrics
from service.tracing import request_span

logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
# Asked every few seconds by machines; only their failures are news.
_PROBES = frozenset({"/livez", "/readyz", "/metrics"})
# What a sender that left before its answer is counted as.
_GONE = 499


class RequestLog:
    """Gives every request an id, measures it, and logs it when it is done.

    Args:
        app: the application; it puts the request's route into its state as ``route``.
        metrics: where requests are counted, if anywhere.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics | None = None) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = _request_id(scope)
        state.setdefault("route", "unmatched")
        outcome = _Outcome(send, request_id)
        metrics = self._metrics
        if metrics is not None:
            metrics.began()
        began = time.perf_counter()
        try:
            with request_span(scope) as span:
                await self._app(scope, receive, outcome.send)
                span.answered(state["route"], outcome.status)
        finally:
            seconds = time.perf_counter() - began
            if metrics is not None:
                metrics.answered(
                    route=state["route"],
                    method=scope["method"],
                    status=outcome.status,
                    seconds=seconds,
                )
            _log(scope, outcome, seconds)


class _Outcome:
    """Passes an answer on, and remembers what it was."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status = _GONE
        self.size = 0
        self.model: str | None = None

    async def send(self, message: Message) -> None:
        """Take one message of the application."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            headers["x-request-id"] = self._request_id
            self.model = headers.get("x-assay-model")
        elif message["type"] == "http.response.body":
            self.size += len(message.get("body", b""))
        await self._send(message)


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)


def _log(scope: Scope, outcome: _Outcome, seconds: float) -> None:
    state = scope["state"]
    if state["route"] in _PROBES and outcome.status < 400:
        return
    method = scope["method"][:16]
    fields: dict[str, object] = {
        "request_id": state["request_id"],
        "method": method,
        "route": state["route"],
        "status": outcome.status,
        "bytes": outcome.size,
        "ms": round(seconds * 1000, 2),
    }
    if caller := caller_of(scope).name:
        fields["caller"] = caller
    if outcome.model:
        fields["model"] = outcome.model
    text = "%s %s %d in %.1f ms"
    values = (method, state["route"], outcome.status, seconds * 1000)
    logger.info(text, *values, extra={FIELDS: fields})

"""Logs of every process, and one line for every request: ASGI middleware.

Query strings, bodies and keys are never written, and a path only as its route's template.
"""

import json
import logging
import re
import secrets
import sys
import time
from datetime import UTC, datetime

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.keys import caller_of
from service.metrics import Metrics
from service.settings import LogFormat
from service.tracing import request_span

logger = logging.getLogger(__name__)

FIELDS = "fields"
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# Loggers to which BentoML gives handlers of their own.
_FOREIGN = ("bentoml", "circus", "uvicorn", "uvicorn.error", "uvicorn.access")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
# Asked every few seconds by machines; only their failures are news.
_PROBES = frozenset({"/livez", "/readyz", "/metrics"})
# What a sender that left before its answer is counted as.
_GONE = 499


class RequestLog:
    """Gives every request an id, measures it, and logs it when it is done.

    Args:
        app: the application.
        metrics: where requests are counted, if anywhere.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics | None = None) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = _request_id(scope)
        outcome = _Outcome(send, request_id)
        metrics = self._metrics
        if metrics is not None:
            metrics.began()
        began = time.perf_counter()
        try:
            with request_span(scope) as span:
                await self._app(scope, receive, outcome.send)
                span.answered(route_of(scope), outcome.status)
        finally:
            seconds = time.perf_counter() - began
            if metrics is not None:
                metrics.answered(
                    route=route_of(scope),
                    method=scope["method"],
                    status=outcome.status,
                    seconds=seconds,
                )
            _log(scope, outcome, seconds)


def route_of(scope: Scope) -> str:
    """The template of a request's route, such as ``/v1/evaluations/{id}``."""
    return getattr(scope.get("route"), "path", "unmatched")


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
    route = route_of(scope)
    if route in _PROBES and outcome.status < 400:
        return
    method = scope["method"][:16]
    fields: dict[str, object] = {
        "request_id": scope["state"]["request_id"],
        "method": method,
        "route": route,
        "status": outcome.status,
        "bytes": outcome.size,
        "ms": round(seconds * 1000, 2),
    }
    if caller := caller_of(scope).name:
        fields["caller"] = caller
    if outcome.model:
        fields["model"] = outcome.model
    text = "%s %s %d in %.1f ms"
    values = (method, route, outcome.status, seconds * 1000)
    logger.info(text, *values, extra={FIELDS: fields})


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record; a dict passed as ``extra={"fields": ...}`` is part of it."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class OneLine(logging.Formatter):
    """Text, in which a message cannot begin a line of its own or move the cursor."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The first line of a record."""
        text = super().formatMessage(record)
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def set_up_logs(log_format: LogFormat) -> None:
    """Send all logs of this process to its standard error.

    Args:
        log_format: ``auto`` is text on a terminal and JSON otherwise.
    """
    if log_format == "auto":
        log_format = "text" if sys.stderr.isatty() else "json"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else OneLine(_TEXT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("service").setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    for name in _FOREIGN:
        foreign = logging.getLogger(name)
        foreign.handlers.clear()
        foreign.propagate = True

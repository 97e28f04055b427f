"""Logs of every process, and what is noted of every request.

Query strings, bodies and keys are never written, and a path only as its route's template.
"""

import json
import logging
import random
import re
import sys
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Message, Scope, Send

from service.http.keys import caller_of
from service.settings import LogFormat

logger = logging.getLogger(__name__)

FIELDS = "fields"
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# Loggers to which BentoML gives handlers of their own.
_FOREIGN = ("bentoml", "circus", "uvicorn", "uvicorn.error", "uvicorn.access")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
# Asked every few seconds by machines; only their failures are news.
PROBES = frozenset({"/livez", "/readyz", "/metrics"})
# What a sender that left before its answer is counted as.
_GONE = 499

# Everything comes from here, nothing inline: a hostile label or file name cannot run.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
    b"img-src 'self' blob: data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    b"frame-ancestors 'none'"
)
_SECURITY_HEADERS = [
    (b"content-security-policy", _POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
]
_encode = json.JSONEncoder(default=str).encode


class Outcome:
    """What becomes of a request: passes its answer on with our headers, and remembers what it was.

    Attributes:
        started: whether the answer has begun.
        status: of the answer; 499 before it has begun.
        size: bytes of its body.
        model: what it says that it was computed by.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope, self._send = scope, send
        scope.setdefault("state", {})["request_id"] = self.request_id = _request_id(scope)
        self.started, self.status, self.size = False, _GONE, 0
        self.model: str | None = None

    async def send(self, message: Message) -> None:
        """Take one message of the application."""
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            given = dict(message.get("headers", ()))
            self.model = given.get(b"x-assay-model", b"").decode() or None
            own = [(b"x-request-id", self.request_id.encode())]
            own += [header for header in _SECURITY_HEADERS if header[0] not in given]
            if self.scope["app"].state.leaving:
                own.append((b"connection", b"close"))
            message["headers"] = [*message.get("headers", ()), *own]
        elif message["type"] == "http.response.body":
            self.size += len(message.get("body", b""))
        await self._send(message)


def route_of(scope: Scope) -> str:
    """The template of a request's route, such as ``/v1/evaluations/{id}``."""
    return getattr(scope.get("route"), "path", "unmatched")


def log_request(outcome: Outcome, seconds: float) -> None:
    """Write the line of a request that is done."""
    scope, route = outcome.scope, route_of(outcome.scope)
    if route in PROBES and outcome.status < 400:
        return
    method = scope["method"][:16]
    fields: dict[str, object] = {
        "request_id": outcome.request_id,
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
    values = (method, route, outcome.status, seconds * 1000)
    logger.info("%s %s %d in %.1f ms", *values, extra={FIELDS: fields})


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"{random.getrandbits(128):032x}"


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
        return _encode(line)


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
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logger.critical("The process ends: %s", error, exc_info=(kind, error, trace))

"""Logs of every process: JSON lines for machines, short lines for people."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["auto", "text", "json"]
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# Loggers to which BentoML gives handlers of their own.
_FOREIGN = ("bentoml", "circus", "uvicorn", "uvicorn.error", "uvicorn.access")
FIELDS = "fields"


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

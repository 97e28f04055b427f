"""What a worker process and the one that started it say to each other."""

import pickle
import traceback
from dataclasses import dataclass

STOP = b""
"""To a worker: stop within one model evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How far a worker is with its range: model evaluations, and what is running, for people."""

    done: int
    stage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A range is done, or met an error that another worker would meet as well."""

    error: Exception | None


def portable(error: Exception) -> Exception:
    """An error that can be sent: itself where pickle manages, else one with its type and text."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # errors with arguments of their own fail in many ways
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error

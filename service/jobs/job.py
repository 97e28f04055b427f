"""One evaluation as the table holds it."""

import secrets
from dataclasses import dataclass
from typing import Any, Literal, get_args

Status = Literal["queued", "running", "succeeded", "failed", "cancelled"]
STATUSES: tuple[str, ...] = get_args(Status)
ACTIVE = ("queued", "running")

Priority = Literal["low", "normal", "high"]
# As numbers of the table: a higher one is claimed first.
PRIORITIES: dict[Priority, int] = {"low": -10, "normal": 0, "high": 10}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What is stored when an evaluation is accepted.

    `models` holds one {"name", "version", "digest"} per model, the attacked one first; `cost`
    counts model evaluations; `fingerprint` is a digest of the whole request; `owner` is the name
    of the caller, empty where there are no keys; `traceparent` is the span of the request.
    """

    id: str
    spec: dict[str, Any]
    models: list[dict[str, str]]
    samples: int
    cost: int
    fingerprint: str
    owner: str = ""
    priority: int = PRIORITIES["normal"]
    idempotency_key: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One row. Times are seconds since the epoch; `eta` and `ran` are in seconds.

    `ran` adds up all attempts; `position` is 1 for the job that is claimed next, and None for one
    that does not wait, or was not asked for its place.
    """

    seq: int
    id: str
    status: Status
    owner: str
    priority: int
    spec: dict[str, Any]
    models: list[dict[str, str]]
    samples: int
    cost: int
    fingerprint: str
    created: float
    started: float | None
    finished: float | None
    done: int
    total: int
    stage: str
    eta: float | None
    ran: float
    attempts: int
    cancel_requested: bool
    result: dict[str, Any] | None
    error: dict[str, str] | None
    deleted: float | None
    traceparent: str | None
    position: int | None

    @property
    def active(self) -> bool:
        """Whether the evaluation is still waiting or running."""
        return self.status in ACTIVE

    @property
    def priority_name(self) -> Priority:
        """The name that clients know the priority by."""
        return next(name for name, number in PRIORITIES.items() if number == self.priority)


def new_job_id() -> str:
    """An identifier that cannot be guessed: 128 random bits in hexadecimal."""
    return secrets.token_hex(16)

"""The table of evaluations as the newest migration leaves it, and its rows as jobs."""

import dataclasses
import json
import secrets
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import (
    Boolean,
    Row,
    ScalarSelect,
    Select,
    Subquery,
    column,
    func,
    select,
    table,
)

Status = Literal["queued", "running", "succeeded", "failed", "cancelled"]
STATUSES: tuple[str, ...] = get_args(Status)
ACTIVE = ("queued", "running")

CONTINUABLE = ("endpoint_failed", "queries_spent")
"""Codes of failures after which an evaluation may go on; nothing was asked in vain."""

Priority = Literal["low", "normal", "high"]
# As numbers of the table: a higher one is claimed first.
PRIORITIES: dict[Priority, int] = {"low": -10, "normal": 0, "high": 10}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What is stored when an evaluation is accepted.

    `models` holds one {"name", "version", "digest"} per model, the attacked one first; `cost`
    counts model evaluations; `fingerprint` is a digest of the whole request; `owner` is the name
    of the caller, empty where there are no keys; `sharer` is who shares the queue with others, see
    `service.http.shares`; `stored` counts bytes on the disk; `traceparent` is the span of the
    request.
    """

    id: str
    spec: dict[str, Any]
    models: list[dict[str, str]]
    samples: int
    cost: int
    fingerprint: str
    owner: str = ""
    sharer: str = ""
    stored: int = 0
    priority: int = PRIORITIES["normal"]
    idempotency_key: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(NewJob):
    """One row. Times are seconds since the epoch; `eta` and `ran` are in seconds.

    `ran` adds up all attempts; `position` is 1 for the job that is claimed next, and None for one
    that does not wait, or was not asked for its place.
    """

    seq: int
    status: Status
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
    position: int | None

    @property
    def active(self) -> bool:
        """Whether the evaluation is still waiting or running."""
        return self.status in ACTIVE

    @property
    def continuable(self) -> bool:
        """Whether it has ended in a way after which it can go on from what is finished."""
        code = (self.error or {}).get("code")
        gone = self.deleted is not None
        return not gone and (self.status == "cancelled" or code in CONTINUABLE)

    @property
    def priority_name(self) -> Priority:
        """The name that clients know the priority by."""
        return next(name for name, number in PRIORITIES.items() if number == self.priority)


def new_job_id() -> str:
    """An identifier that cannot be guessed: 128 random bits in hexadecimal."""
    return secrets.token_hex(16)


_IN_JSON = ("spec", "models", "result", "error")
_STORED = [field.name for field in dataclasses.fields(Job) if field.name != "position"]
_BESIDES = ("model", "best", "worker", "heartbeat", "starts", "lost", "claimed")

# As the newest migration leaves it. Only the type of a flag matters: SQLite keeps it as a number.
jobs = table(
    "evaluations",
    *(column(name) for name in (*_STORED, *_BESIDES) if name != "cancel_requested"),
    column("cancel_requested", Boolean),
)


def new_row(job: NewJob) -> dict[str, Any]:
    """The columns of an evaluation that is accepted."""
    row = dataclasses.asdict(job) | {"status": "queued", "model": job.models[0]["name"]}
    return {name: json.dumps(value) if name in _IN_JSON else value for name, value in row.items()}


def latest_turn() -> ScalarSelect[Any]:
    """When a job's sharer had a turn in its priority: sharers take turns, whoever waits longest."""
    other = jobs.alias()
    same = (other.c.sharer == jobs.c.sharer, other.c.priority == jobs.c.priority)
    return select(func.coalesce(func.max(other.c.claimed), 0)).where(*same).scalar_subquery()


def select_jobs() -> Select[Any]:
    """Every column, and `position` in the queue: 1 is claimed next, None is not waiting."""
    queue = _positions()
    return select(jobs, queue.c.position).select_from(
        jobs.outerjoin(queue, queue.c.seq == jobs.c.seq)
    )


def _positions() -> Subquery:
    """The order in which `claim` takes what waits: the first of each sharer, then the second."""
    own = (jobs.c.priority, jobs.c.sharer)
    waiting = (
        select(
            jobs.c.seq,
            jobs.c.priority,
            func.row_number().over(partition_by=own, order_by=jobs.c.seq).label("nth"),
            latest_turn().label("turn"),
            func.min(jobs.c.seq).over(partition_by=own).label("first"),
        )
        .where(jobs.c.status == "queued")
        .subquery()
    )
    of = waiting.c
    order = (of.priority.desc(), of.nth, of.turn, of.first)
    return select(of.seq, func.row_number().over(order_by=order).label("position")).subquery()


def read_row(row: Row[Any]) -> Job:
    """The job in a row of `select_jobs`, or in one that an update returned."""
    stored = row._mapping
    values: dict[str, Any] = {name: stored[name] for name in _STORED}
    values["position"] = stored.get("position")
    for name in _IN_JSON:
        values[name] = json.loads(values[name]) if values[name] else None
    return Job(**values)

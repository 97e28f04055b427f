"""The table of evaluations as the newest migration leaves it, and its rows as jobs."""

import dataclasses
import json
import secrets
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Integer,
    MetaData,
    Row,
    Select,
    Table,
    Text,
    and_,
    case,
    func,
    or_,
    select,
)

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


_IN_JSON = ("spec", "models", "result", "error")

jobs = Table(
    "evaluations",
    MetaData(),
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("id", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("spec", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("models", Text, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("idempotency_key", Text),
    Column("created", Double, nullable=False),
    Column("started", Double),
    Column("finished", Double),
    Column("done", BigInteger, nullable=False, server_default="0"),
    Column("total", BigInteger, nullable=False, server_default="0"),
    Column("stage", Text, nullable=False, server_default=""),
    Column("eta", Double),
    Column("best", BigInteger, nullable=False, server_default="0"),
    Column("worker", Text),
    Column("heartbeat", Double),
    Column("ran", Double, nullable=False, server_default="0"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("starts", Integer, nullable=False, server_default="0"),
    Column("lost", Integer, nullable=False, server_default="0"),
    Column("cancel_requested", Boolean, nullable=False, server_default="0"),
    Column("result", Text),
    Column("error", Text),
    Column("deleted", Double),
    Column("traceparent", Text),
)


def select_jobs() -> Select[Any]:
    """Every column, and `position` in the queue: 1 is claimed next, None is not waiting."""
    other = jobs.alias()
    ahead = or_(
        other.c.priority > jobs.c.priority,
        and_(other.c.priority == jobs.c.priority, other.c.seq <= jobs.c.seq),
    )
    count = select(func.count()).select_from(other).where(other.c.status == "queued", ahead)
    position = case((jobs.c.status == "queued", count.scalar_subquery()))
    return select(jobs, position.label("position"))


def read_row(row: Row[Any]) -> Job:
    """The job in a row of `select_jobs`, or in one that an update returned."""
    stored = row._mapping
    values: dict[str, Any] = {
        field.name: stored.get(field.name) for field in dataclasses.fields(Job)
    }
    for name in _IN_JSON:
        values[name] = json.loads(values[name]) if values[name] else None
    return Job(**values)


def spent(connection: Connection, owner: str, since: Any) -> int:
    """Model evaluations that were accepted from an owner since a moment, deleted ones included."""
    total = func.coalesce(func.sum(jobs.c.cost), 0)
    query = select(total).where(jobs.c.owner == owner, jobs.c.created >= since)
    return int(connection.execute(query).scalar_one())

"""The table of evaluations as the newest migration leaves it, and its rows as jobs."""

import dataclasses
import json
from typing import Any

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

from service.jobs.job import Job

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

"""One evaluation as the table holds it."""

import json
import secrets
import sqlite3
from dataclasses import dataclass
from typing import Any, Literal, get_args

Status = Literal["queued", "running", "succeeded", "failed", "cancelled"]
STATUSES: tuple[str, ...] = get_args(Status)
ACTIVE = ("queued", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What is stored when an evaluation is accepted.

    `models` holds one {"name", "version", "digest"} per model, the attacked one first; `cost`
    counts model evaluations; `fingerprint` is a digest of the whole request.
    """

    id: str
    spec: dict[str, Any]
    models: list[dict[str, str]]
    samples: int
    cost: int
    fingerprint: str
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One row. Times are seconds since the epoch; `eta` is in seconds."""

    seq: int
    id: str
    status: Status
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
    attempts: int
    cancel_requested: bool
    result: dict[str, Any] | None
    error: dict[str, str] | None
    deleted: float | None

    @property
    def active(self) -> bool:
        """Whether the evaluation is still waiting or running."""
        return self.status in ACTIVE


def new_job_id() -> str:
    """An identifier that cannot be guessed: 128 random bits in hexadecimal."""
    return secrets.token_hex(16)


def read_row(row: sqlite3.Row) -> Job:
    """The job in a row of the table."""
    return Job(
        seq=row["seq"],
        id=row["id"],
        status=row["status"],
        spec=json.loads(row["spec"]),
        models=json.loads(row["models"]),
        samples=row["samples"],
        cost=row["cost"],
        fingerprint=row["fingerprint"],
        created=row["created"],
        started=row["started"],
        finished=row["finished"],
        done=row["done"],
        total=row["total"],
        stage=row["stage"],
        eta=row["eta"],
        attempts=row["attempts"],
        cancel_requested=bool(row["cancel_requested"]),
        result=json.loads(row["result"]) if row["result"] else None,
        error=json.loads(row["error"]) if row["error"] else None,
        deleted=row["deleted"],
    )

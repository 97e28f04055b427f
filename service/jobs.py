"""The durable table of evaluations.

Whatever was accepted ends as a result, a failure with its reason, or a cancellation, whichever
process dies in between. One worker owns a running job and beats for it; a job whose heart has
stopped is queued again. Every change by a worker names the worker, so that one that lost its job
(it was suspended, its clock stood still) can neither finish it nor report on it.
"""

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.job import Job, NewJob, Status, read_row
from service.jobs_schema import open_database

MAX_ATTEMPTS = 3
# An attempt that got this much further than the best before it counts as the first again:
# a machine that is often restarted must not wear out a long evaluation.
PROGRESS_SHARE = 0.01


class QueueFull(Exception):
    """As many evaluations are waiting as the settings allow."""


class KeyConflict(Exception):
    """The idempotency key was used for another request."""


class JobStore:
    """The table, safe for several threads and several processes.

    Args:
        path: the SQLite file; it and its folder are made when missing.

    Raises:
        StateError: the file was written by another version of the service.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._db = open_database(path)

    def close(self) -> None:
        """Close the file; the store cannot be used afterwards."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            # Taking the write lock first: a transaction that read before it wrote could not wait.
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[sqlite3.Row]:
        with self._lock:
            return self._db.execute(sql, parameters).fetchall()

    def submit(self, new: NewJob, *, queue_length: int) -> tuple[Job, bool]:
        """Store an accepted evaluation; its files must already be on disk.

        Returns:
            The job, and whether it is new: the same request under the same idempotency key gives
            the job that exists.

        Raises:
            KeyConflict: the key was used for another request.
            QueueFull: `queue_length` evaluations are waiting.
        """
        with self._write() as db:
            known = self.find_key(new.idempotency_key, new.fingerprint)
            if known is not None:
                return known, False
            if self.waiting() >= queue_length:
                raise QueueFull
            row = db.execute(
                "INSERT INTO jobs (id, status, spec, models, samples, cost, fingerprint,"
                " idempotency_key, created) VALUES (?, 'queued', ?, ?, ?, ?, ?, ?, ?) RETURNING *",
                (
                    new.id,
                    json.dumps(new.spec),
                    json.dumps(new.models),
                    new.samples,
                    new.cost,
                    new.fingerprint,
                    new.idempotency_key,
                    time.time(),
                ),
            ).fetchone()
        return read_row(row), True

    def find_key(self, key: str | None, fingerprint: str) -> Job | None:
        """The job that was accepted under an idempotency key.

        Raises:
            KeyConflict: it was accepted for a request with another fingerprint.
        """
        rows = self._rows("SELECT * FROM jobs WHERE idempotency_key = ?", (key,)) if key else []
        if not rows:
            return None
        if rows[0]["fingerprint"] != fingerprint:
            raise KeyConflict
        return read_row(rows[0])

    def waiting(self) -> int:
        """Number of queued evaluations."""
        return self._rows("SELECT count(*) FROM jobs WHERE status = 'queued'")[0][0]

    def get(self, job_id: str) -> Job | None:
        """One job, also a deleted one (`deleted` is set then), or None."""
        rows = self._rows("SELECT * FROM jobs WHERE id = ?", (job_id,))
        return read_row(rows[0]) if rows else None

    def page(
        self, *, limit: int = 20, cursor: int | None = None, status: str | None = None
    ) -> tuple[list[Job], int | None]:
        """Jobs that are not deleted, newest first, and the cursor of the next page."""
        rows = self._rows(
            "SELECT * FROM jobs WHERE deleted IS NULL AND (? IS NULL OR seq < ?)"
            " AND (? IS NULL OR status = ?) ORDER BY seq DESC LIMIT ?",
            (cursor, cursor, status, status, limit + 1),
        )
        jobs = [read_row(row) for row in rows[:limit]]
        return jobs, jobs[-1].seq if len(rows) > limit else None

    def request_cancel(self, job_id: str) -> Job | None:
        """Cancel a queued job at once, ask a running one to stop, leave a finished one alone."""
        with self._write() as db:
            db.execute(
                "UPDATE jobs SET cancel_requested = 1,"
                " finished = CASE status WHEN 'queued' THEN ? ELSE finished END,"
                " status = CASE status WHEN 'queued' THEN 'cancelled' ELSE status END"
                " WHERE id = ? AND status IN ('queued', 'running')",
                (time.time(), job_id),
            )
            return self.get(job_id)

    def delete(self, job_id: str) -> bool:
        """Empty a finished job's row and leave a tombstone; False when it is not finished.

        The idempotency key is released: a later request under it is a new evaluation.
        """
        with self._write() as db:
            return bool(
                db.execute(
                    "UPDATE jobs SET deleted = ?, spec = '{}', result = NULL, error = NULL,"
                    " stage = '', fingerprint = '', idempotency_key = NULL WHERE id = ?"
                    " AND deleted IS NULL AND status NOT IN ('queued', 'running')",
                    (time.time(), job_id),
                ).rowcount
            )

    def seconds_per_evaluation(self, models: list[dict[str, str]]) -> float | None:
        """Measured over the last undisturbed jobs of the same models; None before the first."""
        rows = self._rows(
            "SELECT sum(seconds) / sum(cost) FROM (SELECT finished - started AS seconds, cost"
            " FROM jobs WHERE status = 'succeeded' AND starts = 1 AND models = ?"
            " ORDER BY seq DESC LIMIT 20)",
            (json.dumps(models),),
        )
        return rows[0][0]

    def claim(self, worker: str) -> Job | None:
        """Take the oldest queued job, or None when nothing waits."""
        now = time.time()
        with self._write() as db:
            row = db.execute(
                "UPDATE jobs SET status = 'running', owner = ?, heartbeat = ?,"
                " started = coalesce(started, ?), attempts = attempts + 1, starts = starts + 1"
                " WHERE seq = (SELECT seq FROM jobs WHERE status = 'queued' ORDER BY seq LIMIT 1)"
                " RETURNING *",
                (worker, now, now),
            ).fetchone()
        return read_row(row) if row else None

    def heartbeat(self, job_id: str, worker: str) -> bool:
        """Say that the job is alive; False when it is no longer this worker's."""
        return self._own("heartbeat = ?", (time.time(),), job_id, worker)

    def progress(
        self, job_id: str, worker: str, *, done: int, total: int, stage: str, eta: float | None
    ) -> bool:
        """Report how far the job is; False when it is no longer this worker's."""
        with self._write() as db:
            owned = self._own(
                "done = ?, total = ?, stage = ?, eta = ?", (done, total, stage, eta), job_id, worker
            )
            if owned:
                db.execute(
                    "UPDATE jobs SET attempts = 1, best = ? WHERE id = ? AND ? >= best + ?",
                    (done, job_id, done, max(1, PROGRESS_SHARE * total)),
                )
        return owned

    def should_stop(self, job_id: str, worker: str) -> bool:
        """Whether the job was cancelled or taken from this worker; one indexed read."""
        rows = self._rows(
            "SELECT cancel_requested FROM jobs WHERE id = ? AND owner = ? AND status = 'running'",
            (job_id, worker),
        )
        return not rows or bool(rows[0][0])

    def finish(self, job_id: str, worker: str, result: dict[str, Any]) -> bool:
        """Store the result; False, and nothing stored, when the job is not this worker's."""
        return self._end(job_id, worker, "succeeded", result=json.dumps(result, allow_nan=False))

    def fail(self, job_id: str, worker: str, code: str, message: str) -> bool:
        """Store why the job failed; False when it is not this worker's."""
        error = json.dumps({"code": code, "message": message})
        return self._end(job_id, worker, "failed", error=error)

    def cancelled(self, job_id: str, worker: str) -> bool:
        """Say that the job has stopped as asked; False when it is not this worker's."""
        return self._end(job_id, worker, "cancelled")

    def release(self, job_id: str, worker: str, *, cause: str, counted: bool = True) -> bool:
        """Give the job back to the queue; it fails after `MAX_ATTEMPTS` without progress.

        Args:
            job_id: the job.
            worker: its present owner.
            cause: what ended the attempt, in words that a user may read.
            counted: False when the attempt ended through no fault of the job (a shutdown).
        """
        with self._write() as db:
            if not counted:
                self._own("attempts = attempts - 1", (), job_id, worker)
            return bool(_let_go(db, "id = ? AND owner = ?", (job_id, worker), cause))

    def requeue_lost(self, *, silent_for: float) -> list[str]:
        """Queue again, or fail, the running jobs whose heart has not beaten for some seconds."""
        with self._write() as db:
            cause = "the evaluator disappeared"
            return _let_go(db, "heartbeat < ?", (time.time() - silent_for,), cause)

    def expired(self, *, older_than: float) -> list[str]:
        """Finished jobs, not yet deleted, that ended more than so many seconds ago."""
        rows = self._rows(
            "SELECT id FROM jobs WHERE deleted IS NULL AND finished < ?",
            (time.time() - older_than,),
        )
        return [row["id"] for row in rows]

    def keeps_files(self, job_id: str) -> bool:
        """Whether the job exists and is not deleted."""
        job = self.get(job_id)
        return job is not None and job.deleted is None

    def _own(self, changes: str, values: Sequence[Any], job_id: str, worker: str) -> bool:
        sql = f"UPDATE jobs SET {changes} WHERE id = ? AND owner = ? AND status = 'running'"
        with self._lock:
            return bool(self._db.execute(sql, (*values, job_id, worker)).rowcount)

    def _end(
        self,
        job_id: str,
        worker: str,
        status: Status,
        *,
        result: str | None = None,
        error: str | None = None,
    ) -> bool:
        return self._own(
            "status = ?, result = ?, error = ?, finished = ?, owner = NULL, eta = NULL",
            (status, result, error, time.time()),
            job_id,
            worker,
        )


def _let_go(db: sqlite3.Connection, where: str, parameters: Sequence[Any], cause: str) -> list[str]:
    message = (
        f"the evaluation ended early {MAX_ATTEMPTS} times without progress ({cause});"
        " it is not tried again"
    )
    worn = f"attempts >= {MAX_ATTEMPTS}"
    error = json.dumps({"code": "evaluator_died", "message": message})
    rows = db.execute(
        "UPDATE jobs SET owner = NULL, heartbeat = NULL, eta = NULL,"
        f" status = CASE WHEN cancel_requested THEN 'cancelled' WHEN {worn} THEN 'failed'"
        "  ELSE 'queued' END,"
        f" finished = CASE WHEN cancel_requested OR {worn} THEN ? END,"
        f" error = CASE WHEN {worn} AND NOT cancel_requested THEN ? END"
        f" WHERE status = 'running' AND {where} RETURNING id",
        (time.time(), error, *parameters),
    ).fetchall()
    return [row["id"] for row in rows]

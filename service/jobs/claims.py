"""The workers' side of the table: one of them owns a running job and beats for it.

Every change names the worker, so that one that lost its job (it was suspended, its clock stood
still) can neither finish it nor report on it.
"""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Executable,
    and_,
    case,
    func,
    or_,
    select,
    update,
)

from service.jobs.database import present, writing
from service.jobs.room import stored_by
from service.jobs.table import Job, Status, jobs, latest_turn, read_row

MAX_ATTEMPTS = 3
# An evaluator that disappears says little about the job: it is given up only when that goes on.
MAX_LOST = 20
# An attempt that got this much further than the best before it counts as the first again:
# a machine that is often restarted must not wear out a long evaluation.
PROGRESS_SHARE = 0.01


class JobClaims:
    """What workers do to the table; see `service.jobs.queue.JobStore`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def claim(self, worker: str) -> Job | None:
        """Take a queued job, or None when nothing waits.

        Of those of the highest priority, it is the oldest one of the sharer whose turn it is.
        """
        now = present(self._engine)
        order = (jobs.c.priority.desc(), latest_turn(), jobs.c.seq)
        first = select(jobs.c.seq).where(jobs.c.status == "queued").order_by(*order).limit(1)
        taken = {
            "status": "running",
            "worker": worker,
            "heartbeat": now,
            "claimed": now,
            "started": func.coalesce(jobs.c.started, now),
            "attempts": jobs.c.attempts + 1,
            "starts": jobs.c.starts + 1,
        }
        with writing(self._engine) as connection:
            # SQLite's transaction excludes all others; PostgreSQL's skips what another has taken.
            seq = connection.execute(first.with_for_update(skip_locked=True)).scalar()
            if seq is None:
                return None
            change = update(jobs).where(jobs.c.seq == seq).values(taken).returning(jobs)
            return read_row(connection.execute(change).one())

    def heartbeat(self, job_id: str, worker: str) -> bool:
        """Say that the job is alive; False when it is no longer this worker's."""
        now = present(self._engine)
        ran = jobs.c.ran + (now - jobs.c.heartbeat)
        return self._own({"heartbeat": now, "ran": ran}, job_id, worker)

    def progress(
        self, job_id: str, worker: str, *, done: int, total: int, stage: str, eta: float | None
    ) -> bool:
        """Report how far the job is; False when it is no longer this worker's."""
        further = jobs.c.best + max(1, PROGRESS_SHARE * total) <= done
        values = {
            "done": done,
            "total": total,
            "stage": stage,
            "eta": eta,
            "attempts": case((further, 1), else_=jobs.c.attempts),
            "lost": case((further, 0), else_=jobs.c.lost),
            "best": case((further, done), else_=jobs.c.best),
        }
        return self._own(values, job_id, worker)

    def should_stop(self, job_id: str, worker: str) -> bool:
        """Whether the job was cancelled or taken from this worker; one indexed read."""
        wish = select(jobs.c.cancel_requested).where(_owned(job_id, worker))
        rows = self._read(wish)
        return not rows or bool(rows[0][0])

    def finish(self, job_id: str, worker: str, result: dict[str, Any]) -> bool:
        """Store the result; False, and nothing stored, when the job is not this worker's."""
        return self._end(job_id, worker, "succeeded", result=json.dumps(result, allow_nan=False))

    def fail(self, job_id: str, worker: str, code: str, message: str) -> bool:
        """Store why the job failed; False when it is not this worker's."""
        return self._end(job_id, worker, "failed", error=_error(code, message))

    def cancelled(self, job_id: str, worker: str) -> bool:
        """Say that the job has stopped as asked; False when it is not this worker's."""
        return self._end(job_id, worker, "cancelled")

    def release(self, job_id: str, worker: str, *, cause: str, counted: bool = True) -> bool:
        """Give the job back to the queue; it fails after `MAX_ATTEMPTS` without progress.

        `cause` says in words that a user may read what ended the attempt, which is not `counted`
        when that is no fault of the job (a shutdown).
        """
        with writing(self._engine) as connection:
            owned = _owned(job_id, worker)
            if not counted:
                fewer = {"attempts": jobs.c.attempts - 1}
                connection.execute(update(jobs).where(owned).values(fewer))
            worn = jobs.c.attempts >= MAX_ATTEMPTS
            message = _given_up(MAX_ATTEMPTS, cause)
            return bool(self._let_go(connection, owned, worn, message))

    def requeue_lost(self, *, silent_for: float) -> list[str]:
        """Queue again the running jobs whose heart has not beaten for some seconds.

        Their attempts do not count, but a job fails after `MAX_LOST` of them without progress.
        """
        silent = jobs.c.heartbeat < present(self._engine) - silent_for
        lost = and_(jobs.c.status == "running", silent)
        if not self._read(select(jobs.c.id).where(lost).limit(1)):
            return []
        with writing(self._engine) as connection:
            counts = {"attempts": jobs.c.attempts - 1, "lost": jobs.c.lost + 1}
            connection.execute(update(jobs).where(lost).values(counts))
            message = _given_up(MAX_LOST, "the evaluator disappeared")
            return self._let_go(connection, lost, jobs.c.lost >= MAX_LOST, message)

    def keep(self, job_id: str, stored: int) -> int:
        """Say how many bytes a job has on the disk; returns those of all jobs of its sharer."""
        kept = and_(jobs.c.id == job_id, jobs.c.deleted.is_(None))
        with writing(self._engine) as connection:
            change = update(jobs).where(kept).values(stored=stored).returning(jobs.c.sharer)
            sharer = connection.execute(change).scalar()
            return 0 if sharer is None else stored_by(connection, sharer)

    def _let_go(
        self,
        connection: Connection,
        which: ColumnElement[bool],
        worn: ColumnElement[bool],
        message: str,
    ) -> list[str]:
        stopped = jobs.c.cancel_requested
        ended = or_(stopped, worn)
        values = {
            "worker": None,
            "heartbeat": None,
            "eta": None,
            "status": case((stopped, "cancelled"), (worn, "failed"), else_="queued"),
            "finished": case((ended, present(self._engine))),
            "error": case((and_(worn, ~stopped), _error("evaluator_died", message))),
        }
        change = update(jobs).where(which).values(values).returning(jobs.c.id)
        return [row[0] for row in connection.execute(change)]

    def _own(self, values: dict[str, Any], job_id: str, worker: str) -> bool:
        with writing(self._engine) as connection:
            change = update(jobs).where(_owned(job_id, worker)).values(values)
            return bool(connection.execute(change).rowcount)

    def _end(self, job_id: str, worker: str, status: Status, **outcome: str) -> bool:
        values = {"status": status, "finished": present(self._engine), "worker": None, "eta": None}
        return self._own(values | outcome, job_id, worker)

    def _read(self, query: Executable) -> Sequence[Any]:
        with self._engine.begin() as connection:
            return connection.execute(query).all()


def _owned(job_id: str, worker: str) -> ColumnElement[bool]:
    return and_(jobs.c.id == job_id, jobs.c.worker == worker, jobs.c.status == "running")


def _error(code: str, message: str) -> str:
    return json.dumps({"code": code, "message": message})


def _given_up(times: int, cause: str) -> str:
    early = f"the evaluation ended early {times} times without progress"
    return f"{early} ({cause}); it is not tried again"

"""The durable table of evaluations.

Whatever was accepted ends as a result, a failure with its reason, or a cancellation, whichever
process dies in between: a job whose worker's heart has stopped is queued again.
"""

import json
import re
from collections.abc import Collection
from typing import Self

from sqlalchemy import ColumnElement, Connection, and_, case, func, insert, select, update

from service.jobs.claims import JobClaims
from service.jobs.database import open_database, present, writing, writing_alone
from service.jobs.job import ACTIVE, Job, NewJob
from service.jobs.statistics import DAY_S, JobFigures
from service.jobs.table import jobs, read_row, select_jobs, spent
from service.settings import Settings

_ID = re.compile(r"[0-9a-f]{32}")


class QueueFull(Exception):
    """As many evaluations are waiting as the settings allow."""


class KeyConflict(Exception):
    """The idempotency key was used for another request."""


class BudgetSpent(Exception):
    """The owner's budget of a day does not allow the evaluation now."""


class JobStore(JobClaims, JobFigures):
    """The table, safe for several threads, several processes and, on PostgreSQL, several hosts.

    Args:
        address: URL of the database, see `database.read_url`; what is missing is made.

    Raises:
        StateError: the database cannot be used.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__(open_database(address))

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """The table that the settings name.

        Raises:
            StateError: the database cannot be used.
        """
        return cls(settings.database_url)

    def close(self) -> None:
        """Close all connections; the store cannot be used afterwards."""
        self._engine.dispose()

    def submit(
        self, new: NewJob, *, queue_length: int, budget: int | None = None
    ) -> tuple[Job, bool]:
        """Store an accepted evaluation; its files must already be on disk.

        Args:
            new: the evaluation.
            queue_length: evaluations that may wait.
            budget: model evaluations that are accepted from the owner in 24 hours.

        Returns:
            The job, and whether it is new: the same request of the same owner under the same
            idempotency key gives the job that exists.

        Raises:
            KeyConflict: the owner used the key for another request.
            QueueFull: `queue_length` evaluations are waiting.
            BudgetSpent: `budget` does not allow it now.
        """
        values = {
            "id": new.id,
            "status": "queued",
            "owner": new.owner,
            "priority": new.priority,
            "spec": json.dumps(new.spec),
            "model": new.models[0]["name"],
            "models": json.dumps(new.models),
            "samples": new.samples,
            "cost": new.cost,
            "fingerprint": new.fingerprint,
            "idempotency_key": new.idempotency_key,
            "traceparent": new.traceparent,
            "created": present(self._engine),
        }
        with writing_alone(self._engine) as connection:
            known = _find_key(connection, new.owner, new.idempotency_key, new.fingerprint)
            if known is not None:
                return known, False
            if _waiting(connection) >= queue_length:
                raise QueueFull
            if budget is not None:
                since = present(self._engine) - DAY_S
                if spent(connection, new.owner, since) + new.cost > budget:
                    raise BudgetSpent
            connection.execute(insert(jobs).values(values))
            row = connection.execute(select_jobs().where(jobs.c.id == new.id)).one()
            return read_row(row), True

    def find_key(self, owner: str, key: str | None, fingerprint: str) -> Job | None:
        """The job that was accepted from an owner under an idempotency key.

        Raises:
            KeyConflict: it was accepted for a request with another fingerprint.
        """
        with self._engine.begin() as connection:
            return _find_key(connection, owner, key, fingerprint)

    def waiting(self) -> int:
        """Number of queued evaluations."""
        with self._engine.begin() as connection:
            return _waiting(connection)

    def get(self, job_id: str) -> Job | None:
        """One job, also a deleted one (`deleted` is set then), or None."""
        return self.get_all([job_id]).get(job_id)

    def get_all(self, ids: Collection[str]) -> dict[str, Job]:
        """Those of some jobs that exist, by identifier."""
        # A client may ask for anything, also for what a database refuses as text.
        known = [job_id for job_id in ids if _ID.fullmatch(job_id)]
        found = self._jobs(jobs.c.id.in_(known)) if known else []
        return {job.id: job for job in found}

    def page(
        self,
        *,
        limit: int = 20,
        cursor: int | None = None,
        status: str | None = None,
        owner: str | None = None,
        model: str | None = None,
    ) -> tuple[list[Job], int | None]:
        """Jobs that are not deleted, newest first, and the cursor of the next page.

        Args:
            limit: of a page.
            cursor: from the page before.
            status: only these.
            owner: only this one's; None is everybody's.
            model: only those with this model on trial.
        """
        wanted: list[ColumnElement[bool]] = [jobs.c.deleted.is_(None)]
        wanted += [jobs.c.seq < cursor] if cursor is not None else []
        for column, value in (
            (jobs.c.status, status),
            (jobs.c.owner, owner),
            (jobs.c.model, model),
        ):
            wanted += [column == value] if value is not None else []
        found = self._jobs(and_(*wanted), limit=limit + 1)
        return found[:limit], found[limit - 1].seq if len(found) > limit else None

    def request_cancel(self, job_id: str) -> Job | None:
        """Cancel a queued job at once, ask a running one to stop, leave a finished one alone."""
        queued = jobs.c.status == "queued"
        values = {
            "cancel_requested": True,
            "finished": case((queued, present(self._engine)), else_=jobs.c.finished),
            "status": case((queued, "cancelled"), else_=jobs.c.status),
        }
        change = update(jobs).where(jobs.c.id == job_id, jobs.c.status.in_(ACTIVE))
        with writing(self._engine) as connection:
            connection.execute(change.values(values))
        return self.get(job_id)

    def delete(self, job_id: str) -> bool:
        """Empty a finished job's row and leave a tombstone; False when it is not finished.

        The idempotency key is released: a later request under it is a new evaluation.
        """
        values = {
            "deleted": present(self._engine),
            "spec": "{}",
            "result": None,
            "error": None,
            "stage": "",
            "fingerprint": "",
            "idempotency_key": None,
        }
        finished = and_(jobs.c.deleted.is_(None), jobs.c.status.not_in(ACTIVE))
        with writing(self._engine) as connection:
            change = update(jobs).where(jobs.c.id == job_id, finished).values(values)
            return bool(connection.execute(change).rowcount)

    def expired(self, *, older_than: float) -> list[str]:
        """Finished jobs, not yet deleted, that ended more than so many seconds ago."""
        old = jobs.c.finished < present(self._engine) - older_than
        with self._engine.begin() as connection:
            return [
                *connection.execute(
                    select(jobs.c.id).where(jobs.c.deleted.is_(None), old)
                ).scalars()
            ]

    def keeps_files(self, job_id: str) -> bool:
        """Whether the job exists and is not deleted."""
        job = self.get(job_id)
        return job is not None and job.deleted is None

    def _jobs(self, wanted: ColumnElement[bool], limit: int | None = None) -> list[Job]:
        query = select_jobs().where(wanted).order_by(jobs.c.seq.desc()).limit(limit)
        with self._engine.begin() as connection:
            return [read_row(row) for row in connection.execute(query)]


def _find_key(connection: Connection, owner: str, key: str | None, fingerprint: str) -> Job | None:
    if key is None:
        return None
    same = and_(jobs.c.owner == owner, jobs.c.idempotency_key == key)
    row = connection.execute(select_jobs().where(same)).first()
    if row is not None and row.fingerprint != fingerprint:
        raise KeyConflict
    return None if row is None else read_row(row)


def _waiting(connection: Connection) -> int:
    queued = select(func.count()).select_from(jobs).where(jobs.c.status == "queued")
    return connection.execute(queued).scalar_one()

"""The durable table of evaluations.

Whatever was accepted ends as a result, a failure with its reason, or a cancellation, whichever
process dies in between: a job whose worker's heart has stopped is queued again.
"""

import json
import re
from collections.abc import Collection, Sequence
from statistics import fmean, linear_regression

from sqlalchemy import (
    ColumnElement,
    Connection,
    String,
    and_,
    case,
    func,
    insert,
    or_,
    select,
    update,
)

from service.http.refusal import ApiError
from service.jobs.claims import JobClaims
from service.jobs.database import open_database, present, writing, writing_alone
from service.jobs.room import Limits, Need, check_room
from service.jobs.table import (
    ACTIVE,
    CONTINUABLE,
    STATUSES,
    Job,
    NewJob,
    jobs,
    new_row,
    read_row,
    select_jobs,
)

_LAST = 20  # jobs from which the speed is measured
_REACH = 10  # times the cost of the largest of them

_ID = re.compile(r"[0-9a-f]{32}")


class JobStore(JobClaims):
    """The table, safe for several threads, several processes and, on PostgreSQL, several hosts.

    Args:
        address: URL of the database, see `database.read_url`; what is missing is made.

    Raises:
        ValueError: the database cannot be used.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__(open_database(address))

    def close(self) -> None:
        """Close all connections; the store cannot be used afterwards."""
        self._engine.dispose()

    def submit(self, new: NewJob, limits: Limits) -> tuple[Job, bool]:
        """Store an accepted evaluation; its files must already be on disk.

        Returns:
            The job, and whether it is new: the same request of the same owner under the same
            idempotency key gives the job that exists.

        Raises:
            ApiError: as in `find_key` and `check_room`.
        """
        now = present(self._engine)
        need = Need(**{field: getattr(new, field) for field in Need.__slots__})
        with writing_alone(self._engine) as connection:
            known = _find_key(connection, new.owner, new.idempotency_key, new.fingerprint)
            if known is not None:
                return known, False
            check_room(connection, need, limits, now)
            connection.execute(insert(jobs).values(new_row(new) | {"created": now}))
            row = connection.execute(select_jobs().where(jobs.c.id == new.id)).one()
            return read_row(row), True

    def find_key(self, owner: str, key: str | None, fingerprint: str) -> Job | None:
        """The job that was accepted from an owner under an idempotency key.

        Raises:
            ApiError: 409 idempotency_conflict for a request with another fingerprint.
        """
        with self._engine.begin() as connection:
            return _find_key(connection, owner, key, fingerprint)

    def check_room(self, need: Need, limits: Limits) -> None:
        """Refuse what `submit` would refuse.

        Raises:
            ApiError: 429 queue_full, storage_spent, budget_spent.
        """
        with self._engine.begin() as connection:
            check_room(connection, need, limits, present(self._engine))

    def waiting(self) -> int:
        """Number of queued evaluations."""
        queued = select(func.count()).select_from(jobs).where(jobs.c.status == "queued")
        return self._read(queued)[0][0]

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
        search: str = "",
    ) -> tuple[list[Job], int | None]:
        """Jobs that are not deleted, newest first, and the cursor of the next page.

        `cursor` is from the page before; `status`, `owner` and `model` (the one under evaluation)
        leave out the jobs of others, and `search` those that have these letters neither in the
        spec nor among the models.
        """
        wanted: list[ColumnElement[bool]] = [jobs.c.deleted.is_(None)]
        wanted += [jobs.c.seq < cursor] if cursor is not None else []
        given = {jobs.c.status: status, jobs.c.owner: owner, jobs.c.model: model}
        wanted += [column == value for column, value in given.items() if value is not None]
        if search:
            letters = json.dumps(search.lower())[1:-1]  # as texts lie in the columns
            shown = func.lower(jobs.c.spec.concat(jobs.c.models), type_=String)
            wanted.append(shown.contains(letters, autoescape=True))
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

    def resume(self, job_id: str, need: Need, limits: Limits) -> bool:
        """Queue a `continuable` job again, with what it has finished; False when it is none.

        Raises:
            ApiError: as in `check_room`.
        """
        ended = [jobs.c.status == "cancelled"]
        ended += [jobs.c.error.startswith(f'{{"code": "{code}"') for code in CONTINUABLE]
        which = and_(jobs.c.id == job_id, jobs.c.deleted.is_(None), or_(*ended))
        fresh = {"status": "queued", "finished": None, "attempts": 0, "lost": 0, "error": None}
        change = update(jobs).where(which).values(fresh | {"cancel_requested": False})
        with writing_alone(self._engine) as connection:
            check_room(connection, need, limits, present(self._engine))
            return bool(connection.execute(change).rowcount)

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
            "stored": 0,
        }
        finished = and_(jobs.c.deleted.is_(None), jobs.c.status.not_in(ACTIVE))
        with writing(self._engine) as connection:
            change = update(jobs).where(jobs.c.id == job_id, finished).values(values)
            return bool(connection.execute(change).rowcount)

    def forget_sharers(self, *, older_than: float) -> None:
        """Drop the addresses that evaluations came from and that were deleted so long ago."""
        old = jobs.c.deleted < present(self._engine) - older_than
        known = and_(jobs.c.owner == "", jobs.c.sharer != "", old)
        with writing(self._engine) as connection:
            connection.execute(update(jobs).where(known).values(sharer=""))

    def expired(self, *, older_than: float) -> list[str]:
        """Finished jobs, not yet deleted, that ended more than so many seconds ago."""
        old = jobs.c.finished < present(self._engine) - older_than
        found = self._read(select(jobs.c.id).where(jobs.c.deleted.is_(None), old))
        return [row.id for row in found]

    def counts(self) -> dict[str, int]:
        """The number of evaluations in each status, without those that are deleted."""
        count = select(jobs.c.status, func.count()).where(jobs.c.deleted.is_(None))
        found = self._read(count.group_by(jobs.c.status))
        return dict.fromkeys(STATUSES, 0) | {status: number for status, number in found}

    def totals(self) -> int:
        """Model evaluations that were done for all evaluations, the deleted ones too."""
        return int(self._read(select(func.sum(jobs.c.done)))[0][0] or 0)

    def seconds_of(self, models: list[dict[str, str]], cost: int) -> float | None:
        """How long an evaluation would run, from the last undisturbed ones of the same models.

        None when none of them, or only much smaller ones, are known.
        """
        undisturbed = (
            select(jobs.c.cost, jobs.c.finished - jobs.c.started)
            .where(jobs.c.status == "succeeded", jobs.c.starts == 1, jobs.c.cost > 0)
            .where(jobs.c.models == json.dumps(models))
            .order_by(jobs.c.seq.desc())
            .limit(_LAST)
        )
        known = [(int(size), float(took)) for size, took in self._read(undisturbed)]
        return predict_seconds(known, cost)

    def _jobs(self, wanted: ColumnElement[bool], limit: int | None = None) -> list[Job]:
        query = select_jobs().where(wanted).order_by(jobs.c.seq.desc()).limit(limit)
        return [read_row(row) for row in self._read(query)]


def _find_key(connection: Connection, owner: str, key: str | None, fingerprint: str) -> Job | None:
    if key is None:
        return None
    same = and_(jobs.c.owner == owner, jobs.c.idempotency_key == key)
    row = connection.execute(select_jobs().where(same)).first()
    if row is not None and row.fingerprint != fingerprint:
        message = "This Idempotency-Key was used for another request."
        raise ApiError(409, "idempotency_conflict", message)
    return None if row is None else read_row(row)


def predict_seconds(known: Sequence[tuple[int, float]], cost: int) -> float | None:
    """Seconds of an evaluation of `cost`, from pairs of costs and seconds.

    Every evaluation takes some seconds to start, whatever it costs: a straight line through the
    known ones tells the two apart. Beyond ten times the largest known one nothing is said.
    """
    if not known or cost > _REACH * max(size for size, _ in known):
        return None
    sizes, seconds = zip(*known, strict=True)
    mean_size, mean_seconds = fmean(sizes), fmean(seconds)
    if len(set(sizes)) == 1:
        return mean_seconds * max(1.0, cost / mean_size)
    slope = linear_regression(sizes, seconds).slope
    slope = min(max(slope, 0.0), mean_seconds / mean_size)  # neither part is negative
    return mean_seconds + slope * (cost - mean_size)

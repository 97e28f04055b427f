"""What the table tells of many evaluations together: for metrics, estimates and budgets."""

import json

from sqlalchemy import Engine, func, select

from service.evaluations.database import present
from service.evaluations.job import STATUSES
from service.evaluations.jobs_table import jobs, spent

DAY_S = 86_400.0
_LAST = 20  # jobs from which the speed is measured


class JobFigures:
    """Questions to the table; see `service.evaluations.jobs.JobStore`.

    Args:
        engine: from `open_database`.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def counts(self) -> dict[str, int]:
        """The number of evaluations in each status, without those that are deleted."""
        count = select(jobs.c.status, func.count()).where(jobs.c.deleted.is_(None))
        with self._engine.begin() as connection:
            found = connection.execute(count.group_by(jobs.c.status)).all()
        return dict.fromkeys(STATUSES, 0) | {status: number for status, number in found}

    def totals(self) -> int:
        """Model evaluations that were done for all evaluations, the deleted ones too."""
        with self._engine.begin() as connection:
            return int(connection.execute(select(func.sum(jobs.c.done))).scalar() or 0)

    def spent(self, owner: str, since: float) -> int:
        """Model evaluations that were accepted from an owner.

        Args:
            owner: the caller's name.
            since: from when on, in seconds since the epoch.
        """
        with self._engine.begin() as connection:
            return spent(connection, owner, since)

    def affordable_in(self, owner: str, cost: int, budget: int) -> float:
        """Seconds until a daily budget allows a cost, which is not above the budget itself."""
        now = present(self._engine)
        columns = select(jobs.c.cost, (jobs.c.created + DAY_S - now).label("left"))
        recent = columns.where(jobs.c.owner == owner, jobs.c.created >= now - DAY_S)
        with self._engine.begin() as connection:
            rows = connection.execute(recent.order_by(jobs.c.seq)).all()
        too_much = sum(row.cost for row in rows) + cost - budget
        wait = 0.0
        for row in rows:
            if too_much <= 0:
                break
            too_much, wait = too_much - row.cost, row.left
        return max(0.0, wait)

    def next_place_in(self) -> float | None:
        """Estimate of the seconds until a waiting evaluation is taken; None when there is none."""
        eta = select(func.min(jobs.c.eta)).where(jobs.c.status == "running")
        with self._engine.begin() as connection:
            return connection.execute(eta).scalar()

    def seconds_per_evaluation(self, models: list[dict[str, str]]) -> float | None:
        """Measured over the last undisturbed jobs of the same models; None before the first."""
        undisturbed = (
            select((jobs.c.finished - jobs.c.started).label("seconds"), jobs.c.cost)
            .where(jobs.c.status == "succeeded", jobs.c.starts == 1, jobs.c.cost > 0)
            .where(jobs.c.models == json.dumps(models))
            .order_by(jobs.c.seq.desc())
            .limit(_LAST)
            .subquery()
        )
        sums = select(func.sum(undisturbed.c.seconds), func.sum(undisturbed.c.cost))
        with self._engine.begin() as connection:
            seconds, cost = connection.execute(sums).one()
        return None if seconds is None else seconds / int(cost)

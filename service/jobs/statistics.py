"""What the table tells of many evaluations together: for metrics, estimates and budgets."""

import json
from collections.abc import Sequence
from statistics import fmean

from sqlalchemy import Engine, func, select

from service.jobs.database import present
from service.jobs.job import STATUSES
from service.jobs.table import jobs, spent

DAY_S = 86_400.0
_LAST = 20  # jobs from which the speed is measured
_REACH = 10  # times the cost of the largest of them


class JobFigures:
    """Questions to the table; see `service.jobs.queue.JobStore`.

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

    def seconds_of(self, models: list[dict[str, str]], cost: int) -> float | None:
        """How long an evaluation would run, from the last undisturbed ones of the same models.

        Args:
            models: as in the table.
            cost: model evaluations.

        Returns:
            None when none of them, or only much smaller ones, are known.
        """
        undisturbed = (
            select(jobs.c.cost, jobs.c.finished - jobs.c.started)
            .where(jobs.c.status == "succeeded", jobs.c.starts == 1, jobs.c.cost > 0)
            .where(jobs.c.models == json.dumps(models))
            .order_by(jobs.c.seq.desc())
            .limit(_LAST)
        )
        with self._engine.begin() as connection:
            known = [(int(size), float(took)) for size, took in connection.execute(undisturbed)]
        return predict_seconds(known, cost)


def predict_seconds(known: Sequence[tuple[int, float]], cost: int) -> float | None:
    """Seconds of an evaluation of `cost`, from pairs of costs and seconds.

    Every evaluation takes some seconds to start, whatever it costs: a straight line through the
    known ones tells the two apart. Beyond ten times the largest known one nothing is said.
    """
    if not known or cost > _REACH * max(size for size, _ in known):
        return None
    mean_size = fmean(size for size, _ in known)
    mean_took = fmean(took for _, took in known)
    spread = sum((size - mean_size) ** 2 for size, _ in known)
    if not spread:
        return mean_took * max(1.0, cost / mean_size)
    slope = sum((size - mean_size) * (took - mean_took) for size, took in known) / spread
    slope = min(max(slope, 0.0), mean_took / mean_size)  # neither part is negative
    return mean_took + slope * (cost - mean_size)

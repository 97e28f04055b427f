"""Whether there is room for one more evaluation; who asks for too much learns when to come back."""

import math
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, select

from service.http.refusal import ApiError
from service.http.shares import fits
from service.jobs.table import PRIORITIES, jobs

_DAY_S = 86_400.0
# For a full queue, where no running evaluation tells how long it takes, and at most.
_RETRY_AFTER_S, _MAX_RETRY_AFTER_S = 10, 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is accepted.

    Attributes:
        queue_length: evaluations that wait, shared fairly; those of priority `high` have as many
            places again.
        stored: bytes that one sharer's evaluations keep.
        budget: model evaluations that are accepted from the owner in a day; None is unlimited.
    """

    queue_length: int
    stored: int
    budget: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What an evaluation takes.

    Attributes:
        owner: name of the key, empty where there are none.
        sharer: see `service.http.shares`.
        priority: as a number of the table.
        cost: in model evaluations.
        stored: bytes of its inputs.
    """

    owner: str
    sharer: str
    priority: int
    cost: int
    stored: int


def check_room(
    connection: Connection, need: Need, limits: Limits, now: ColumnElement[float]
) -> None:
    """Refuse an evaluation that there is no room for.

    Raises:
        ApiError: 429 queue_full, storage_spent, budget_spent.
    """
    _check_queue(connection, need, limits.queue_length)
    _check_stored(connection, need, limits.stored)
    if limits.budget is not None:
        _check_budget(connection, need, limits.budget, now)


def _check_queue(connection: Connection, need: Need, queue_length: int) -> None:
    high = jobs.c.priority >= PRIORITIES["high"]
    same = high if need.priority >= PRIORITIES["high"] else ~high
    counts = select(func.count(), func.count().filter(jobs.c.sharer == need.sharer))
    total, own = connection.execute(counts.where(jobs.c.status == "queued", same)).one()
    if fits(1, own=own, free=queue_length - total):
        return
    soonest = select(func.min(jobs.c.eta)).where(jobs.c.status == "running")
    wait = min(connection.execute(soonest).scalar() or _RETRY_AFTER_S, _MAX_RETRY_AFTER_S)
    whose = f"{own} evaluations of {need.sharer!r} are waiting, its share of {queue_length} places"
    message = whose if own else f"{total} evaluations are waiting, all that there are places for"
    details = {"caller": need.sharer if own else None, "waiting": own or total}
    raise _try_later("queue_full", f"{message}; try again later.", wait, details)


def stored_by(connection: Connection, sharer: str) -> int:
    """Bytes on the disk of all evaluations of a sharer."""
    own = and_(jobs.c.sharer == sharer, jobs.c.stored > 0)
    return int(connection.execute(select(func.sum(jobs.c.stored)).where(own)).scalar() or 0)


def _check_stored(connection: Connection, need: Need, limit: int) -> None:
    kept = stored_by(connection, need.sharer)
    if kept + need.stored > limit:
        sizes = f"{kept / 1_000_000:,.0f} MB of the {limit / 1_000_000:,.0f} MB"
        message = f"The evaluations of {need.sharer!r} keep {sizes} allowed; delete some."
        details = {"stored": kept, "limit": limit}
        raise _try_later("storage_spent", message, _MAX_RETRY_AFTER_S, details)


def _check_budget(
    connection: Connection, need: Need, budget: int, now: ColumnElement[float]
) -> None:
    today = and_(jobs.c.owner == need.owner, jobs.c.created >= now - _DAY_S)
    spent = int(connection.execute(select(func.sum(jobs.c.cost)).where(today)).scalar() or 0)
    missing = spent + need.cost - budget
    if missing <= 0:
        return
    freed = func.sum(jobs.c.cost).over(order_by=jobs.c.seq)  # as one day after the other ends
    ends = select((jobs.c.created + _DAY_S - now).label("left"), freed.label("freed")).where(today)
    days = ends.subquery()
    enough = select(func.min(days.c.left)).where(days.c.freed >= missing)
    wait = connection.execute(enough).scalar() or _DAY_S
    message = f"This key's {budget:,} model evaluations in 24 hours are spent; try again later."
    raise _try_later("budget_spent", message, wait, {"limit": budget})


def _try_later(code: str, message: str, wait: float, details: Any) -> ApiError:
    headers = {"Retry-After": str(max(1, math.ceil(wait)))}
    return ApiError(429, code, message, details, headers)

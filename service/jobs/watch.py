"""Waits for the process of an evaluation to end, and ends it for what it must not do."""

import threading
import time
from dataclasses import dataclass
from typing import Literal

from sqlalchemy.exc import DBAPIError

from service.jobs.job import Job
from service.jobs.process import EvaluationChild, evaluation_memory
from service.jobs.queue import JobStore
from service.settings import Settings

_LOOK_S = 0.1
_HEARTBEAT_S = 1.0
# A child stops within one attack step; one that does not is stuck.
_CANCEL_S = 30.0


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the wait is over.

    Attributes:
        kind: "left" when the job may be tried again, unless the child has reported its own end.
        reason: in words that a user may read.
        code: of the failure, for "failed".
        status: of the process, where it has ended by itself.
    """

    kind: Literal["left", "cancelled", "failed"]
    reason: str
    code: str = ""
    status: int | None = None


class EvaluationWatch:
    """Beats for a job while its process runs, and looks at its time, memory and cancellation.

    Args:
        store: the table of evaluations.
        job: the evaluation, claimed by `worker`.
        worker: its owner.
        settings: limits of an evaluation.
        stopping: set when the service stops.
        lost_after: seconds without a heartbeat after which another may take the job.
    """

    def __init__(
        self,
        store: JobStore,
        job: Job,
        worker: str,
        settings: Settings,
        *,
        stopping: threading.Event,
        lost_after: float,
    ) -> None:
        self._store = store
        self._job = job
        self._worker = worker
        self._settings = settings
        self._stopping = stopping
        self._lost_after = lost_after
        self._memory = evaluation_memory(settings)
        now = time.monotonic()
        self._deadline = now + settings.evaluation_max_hours * 3600 - job.ran
        self._next_beat, self._last_beat = now, now
        self._stuck_at: float | None = None

    def until_end(self, child: EvaluationChild) -> Ending:
        """Wait until the child has ended, or must be ended."""
        while (status := child.wait(_LOOK_S)) is None:
            if self._stopping.is_set():
                return Ending("left", "the service was stopped")
            ending = self._over_limits(child) or self._talk()
            if ending is not None:
                return ending
        by_signal = status < 0
        reason = f"killed by signal {-status}" if by_signal else f"ended with status {status}"
        return Ending("left", reason, status=status)

    def _over_limits(self, child: EvaluationChild) -> Ending | None:
        if child.resident_bytes() > self._memory:
            megabytes = self._memory // 1_000_000
            reason = f"the evaluation needs more than the {megabytes} MB of memory allowed"
            return Ending("failed", reason, code="out_of_memory")
        if time.monotonic() > self._deadline:
            hours = self._settings.evaluation_max_hours
            reason = f"the evaluation takes longer than the {hours:g} hours allowed"
            return Ending("failed", reason, code="time_limit")
        return None

    def _talk(self) -> Ending | None:
        """Beat, and learn whether the job is still wanted, and still ours."""
        now = time.monotonic()
        if now < self._next_beat:
            return None
        self._next_beat = now + _HEARTBEAT_S
        try:
            ours = self._store.heartbeat(self._job.id, self._worker)
            wanted = not self._store.should_stop(self._job.id, self._worker)
        except DBAPIError:  # full, or restarting: others take the job only after a while
            lost = now - self._last_beat > self._lost_after
            return Ending("left", "the table of evaluations does not answer") if lost else None
        self._last_beat = now
        if not ours:
            return Ending("left", "another evaluator has taken over")
        if not wanted:
            self._stuck_at = self._stuck_at or now + _CANCEL_S
            if now > self._stuck_at:
                return Ending("cancelled", "it was cancelled")
        return None

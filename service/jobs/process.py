"""The process of one evaluation as the evaluator sees it: started, watched, ended."""

import logging
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import psutil
from sqlalchemy.exc import DBAPIError

from runtimes.threads import available_cores
from service.jobs.queue import JobStore
from service.jobs.table import ACTIVE, Job
from service.jobs.uploads import evaluations_folder, stored_bytes
from service.processes import available_memory, family, resident_bytes
from service.settings import ROOT, Settings

logger = logging.getLogger(__name__)

ADDRESS = "ASSAY_DATABASE"  # a URL may hold a password, and every user may read command lines
_STOP_S = 3.0
# To find the descendants, the list of all processes is read: not at every look.
_LOOK_FOR_CHILDREN_S = 1.0


class EvaluationChild:
    """A running `python -m service.jobs.child`, for a job that was claimed by `worker`."""

    def __init__(self, job: Job, worker: str, address: str, settings: Settings) -> None:
        threads = str(evaluation_threads(settings))
        command = [sys.executable, "-m", "service.jobs.child", "--job", job.id]
        command += ["--worker", worker, "--state", str(settings.state)]
        command += ["--parent", str(os.getpid()), "--threads", threads]
        command += ["--models", *map(str, settings.models)]
        command += ["--targets", str(settings.targets)] if settings.targets else []
        self._armed, armed = os.pipe()
        command += ["--armed", str(armed)]
        given = {ADDRESS: address, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        try:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | given,
                stdin=subprocess.DEVNULL,
                pass_fds=(armed,),
                process_group=0,  # to end it with all that it starts; Ctrl-C does not reach it
            )
        except BaseException:
            os.close(self._armed)
            raise
        finally:
            os.close(armed)
        self._family: list[psutil.Process] = []
        self._next_look = 0.0

    def wait(self, timeout: float) -> int | None:
        """The exit status, or None after so many seconds; negative for a signal."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def resident_bytes(self) -> int:
        """The memory of the process and of those that it has started."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_FOR_CHILDREN_S
            self._family = family(self._process.pid)
        return resident_bytes(self._family)

    def pause(self) -> None:
        """Let the process, which has no children, stand still until `resume`.

        Nothing happens before the process has seen to it that it ends with this one.
        """
        if select.select([self._armed], [], [], 0)[0]:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process go on."""
        self._process.send_signal(signal.SIGCONT)

    def end(self, *, at_once: bool = False) -> None:
        """End the process and those that it has started, the first one gently unless `at_once`."""
        others = family(self._process.pid)[1:]
        if not at_once:
            self._process.terminate()
            self.wait(_STOP_S)
        self._process.kill()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in others:  # of other groups
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self.wait(_STOP_S) is None:  # a faulty device may keep it in the kernel
            logger.error("The process %d does not end", self._process.pid)
        if self._armed >= 0:
            os.close(self._armed)
            self._armed = -1


def evaluation_threads(settings: Settings) -> int:
    """Threads of one evaluation: what predictions leave, shared by the evaluators of this host."""
    if settings.evaluation_threads is not None:
        return settings.evaluation_threads
    cores = available_cores()
    left = cores // 2 if settings.predict_threads is None else cores - settings.predict_threads
    return max(1, left // settings.evaluators)


def evaluation_memory(settings: Settings) -> int:
    """Bytes at which an evaluation is ended: its share of half of the memory, unless it is set."""
    if settings.evaluation_memory_mb is not None:
        return int(settings.evaluation_memory_mb * 1_000_000)
    return available_memory() // 2 // settings.evaluators


_LOOK_S = 0.1
_HEARTBEAT_S = 0.5
_SUM_S = 10.0  # how often the bytes on the disk are summed up
# A child stops within one attack step, unless it is still starting, is stopped, or is stuck.
_GRACE_S = 2.0


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


@dataclass(kw_only=True)
class EvaluationWatch:
    """Beats for a job while its process runs, and looks at its time, memory and cancellation.

    `stopping` is set when the service stops; after `lost_after` seconds without a heartbeat another
    worker may take the job.
    """

    store: JobStore
    job: Job
    worker: str
    settings: Settings
    stopping: threading.Event
    lost_after: float

    def __post_init__(self) -> None:
        self._memory = evaluation_memory(self.settings)
        now = time.monotonic()
        self._deadline = now + self.settings.evaluation_max_hours * 3600 - self.job.ran
        self._next_beat, self._last_beat, self._next_sum = now, now, now
        self._grace_ends = math.inf

    def until_end(self, child: EvaluationChild) -> Ending:
        """Wait until the child has ended, or must be ended."""
        while (status := child.wait(_LOOK_S)) is None:
            if self.stopping.is_set():
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
            hours = self.settings.evaluation_max_hours
            reason = f"the evaluation takes longer than the {hours:g} hours allowed"
            return Ending("failed", reason, code="time_limit")
        if time.monotonic() > self._grace_ends:
            return Ending("cancelled", "it was cancelled")
        return None

    def _talk(self) -> Ending | None:
        """Beat, and learn whether the job is still wanted, and still ours."""
        now = time.monotonic()
        if now < self._next_beat:
            return None
        self._next_beat = now + _HEARTBEAT_S
        try:
            ours = self.store.heartbeat(self.job.id, self.worker)
            wanted = not self.store.should_stop(self.job.id, self.worker)
            kept = self._kept_bytes(now)
        except DBAPIError:  # full, or restarting: others take the job only after a while
            lost = now - self._last_beat > self.lost_after
            return Ending("left", "the table of evaluations does not answer") if lost else None
        self._last_beat = now
        if not ours:
            job = self.store.get(self.job.id)
            if job is None or job.status in ACTIVE:
                return Ending("left", "another evaluator has taken over")
            wanted = False  # it is finished: the process removes its inputs and sends its spans
        if kept > self.settings.stored_mb * 1_000_000:
            limit = f"{self.settings.stored_mb:g} MB allowed"
            reason = f"the evaluation and others of its sender keep more than the {limit}"
            return Ending("failed", reason, code="storage_spent")
        if not wanted:
            self._grace_ends = min(self._grace_ends, now + _GRACE_S)
        return None

    def _kept_bytes(self, now: float) -> int:
        """What its sender's evaluations have on the disk, as far as it is time to look."""
        if now < self._next_sum:
            return 0
        self._next_sum = now + _SUM_S
        folder = evaluations_folder(self.settings.state) / self.job.id
        return self.store.keep(self.job.id, stored_bytes(folder))

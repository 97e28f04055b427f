"""The loop that runs evaluations: one at a time, each in a process of its own.

A child that dies, of a signal or of memory, takes nothing with it: its job is queued again and
continues with the shards that are finished. The loop itself may die as well: its job's heart stops,
and whichever loop notices that queues the job again.
"""

import logging
import os
import secrets
import shutil
import signal
import socket
import threading
import time
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from core.files import remove_leftovers
from service.jobs.process import Ending, EvaluationChild, EvaluationWatch
from service.jobs.queue import JobStore
from service.jobs.table import Job
from service.jobs.throttle import Predictors, throttled
from service.jobs.uploads import REPORT, evaluations_folder, stored_bytes
from service.settings import Settings
from service.start import server_pid

logger = logging.getLogger(__name__)

_IDLE_S = 0.25
_LOOK_S = 1.0
# Well above the heartbeat and above the time in which an orphaned child ends (`watch_parent`).
_LOST_AFTER_S = 6.0
_STOP_S = 6.0
_AFTER_FAULT_S = 2.0
_CLEAN_EVERY_S = 3600.0
_FORGET_S = 86_400.0  # until then it counts whose turn it is
# A folder without a row may belong to an upload that is still being written.
_LEFTOVER_S = 900.0


class Evaluator:
    """Claims queued evaluations and runs them, from a thread.

    After `lost_after` seconds without a heartbeat a running job is queued again.
    """

    def __init__(
        self, store: JobStore, settings: Settings, *, lost_after: float = _LOST_AFTER_S
    ) -> None:
        self._store = store
        self._settings = settings
        self._lost_after = lost_after
        self._worker = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._predictors = Predictors(server_pid())
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="evaluator", daemon=True)
        self._next_clean = 0.0
        self._next_look = 0.0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the running child, give its job back to the queue, and end the thread."""
        self._stopping.set()
        self._thread.join(_STOP_S)

    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            idle = _IDLE_S
            try:
                self._maintain()
                job = self._store.claim(self._worker) if self._store.waiting() else None
                if job is not None:
                    self._run(job)
                    idle = 0.0
            except DBAPIError as error:  # its text may quote rows; the table may be back soon
                logger.error("The table of evaluations does not answer: %s", type(error.orig))
                idle = _AFTER_FAULT_S
            except Exception:  # a full disk must not end the loop
                logger.exception("The evaluator could not go on; it tries again")
                idle = _AFTER_FAULT_S
            self._stopping.wait(idle)

    def _maintain(self) -> None:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            for job_id in self._store.requeue_lost(silent_for=self._lost_after):
                logger.warning("Evaluation %s had lost its evaluator", job_id)
                self._drop_unfinished(job_id)
        if now >= self._next_clean:
            self._next_clean = now + _CLEAN_EVERY_S
            self._clean()

    def _clean(self) -> None:
        for job_id in self._store.expired(older_than=self._settings.retention_hours * 3600):
            self._store.delete(job_id)
        self._store.forget_sharers(older_than=_FORGET_S)
        folder = evaluations_folder(self._settings.state)
        for entry in folder.iterdir() if folder.is_dir() else ():
            job = self._store.get(entry.name)
            if (job is None or job.deleted) and _age(entry) > _LEFTOVER_S:
                shutil.rmtree(entry, ignore_errors=True)

    def _run(self, job: Job) -> None:
        child = EvaluationChild(job, self._worker, self._store.address, self._settings)
        watch = EvaluationWatch(
            store=self._store,
            job=job,
            worker=self._worker,
            settings=self._settings,
            stopping=self._stopping,
            lost_after=self._lost_after,
        )
        ending = Ending("left", "the evaluator failed")
        try:
            with throttled(child, self._predictors, self._settings.evaluation_share):
                ending = watch.until_end(child)
        finally:
            child.end(at_once=ending.kind != "left")
        self._record(job, ending)
        self._drop_unfinished(job.id)

    def _record(self, job: Job, ending: Ending) -> None:
        """Say how it ended, unless the child has done so: then the job is not ours any more."""
        if ending.kind == "cancelled":
            self._store.cancelled(job.id, self._worker)
        elif ending.kind == "failed":
            if self._store.fail(job.id, self._worker, ending.code, ending.reason):
                logger.warning("Evaluation %s was ended: %s", job.id, ending.reason)
        else:
            # On shutdown the server may signal the child before this loop learns of it.
            innocent = self._stopping.is_set() or ending.status == -signal.SIGTERM
            if self._store.release(job.id, self._worker, cause=ending.reason, counted=not innocent):
                logger.warning("Evaluation %s was interrupted: %s", job.id, ending.reason)

    def _drop_unfinished(self, job_id: str) -> None:
        """A failed evaluation keeps only what was uploaded, a continuable one all it has."""
        job = self._store.get(job_id)
        folder = evaluations_folder(self._settings.state) / job_id
        if job is not None and job.continuable:
            remove_leftovers(folder / REPORT)
        elif job is not None and job.status == "failed":
            shutil.rmtree(folder / REPORT, ignore_errors=True)
        self._store.keep(job_id, stored_bytes(folder))


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0

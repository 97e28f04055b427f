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
import subprocess
import sys
import threading
import time
from pathlib import Path

from service.job import Job
from service.jobs import JobStore
from service.settings import ROOT, Settings
from service.uploads import evaluations_folder

logger = logging.getLogger(__name__)

_IDLE_S = 0.25
_HEARTBEAT_S = 1.0
# Well above the heartbeat and above the time in which an orphaned child ends (`watch_parent`).
_LOST_AFTER_S = 6.0
# A child stops within one attack step; one that does not is stuck.
_CANCEL_S = 30.0
_STOP_S = 3.0
_CLEAN_EVERY_S = 3600.0
# A folder without a row may belong to an upload that is still being written.
_LEFTOVER_S = 900.0


class Evaluator:
    """Claims queued evaluations and runs them, from a thread.

    Args:
        store: the table of evaluations.
        settings: where the state and the artifacts are, threads of a child, retention.
        lost_after: seconds without a heartbeat after which a running job is queued again.
    """

    def __init__(
        self, store: JobStore, settings: Settings, *, lost_after: float = _LOST_AFTER_S
    ) -> None:
        self._store = store
        self._settings = settings
        self._lost_after = lost_after
        self._worker = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="evaluator", daemon=True)
        self._next_clean = 0.0
        self._next_look = 0.0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float = 2 * _STOP_S) -> None:
        """End the running child, give its job back to the queue, and end the thread."""
        self._stopping.set()
        self._thread.join(timeout)

    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            job = None
            try:
                self._keep_house()
                job = self._store.claim(self._worker) if self._store.waiting() else None
                if job is not None:
                    self._run(job)
            except Exception:  # a full disk or a locked table must not end the loop
                logger.exception("The evaluator could not go on; it tries again")
            if job is None:
                self._stopping.wait(_IDLE_S)

    def _keep_house(self) -> None:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _HEARTBEAT_S
            for job_id in self._store.requeue_lost(silent_for=self._lost_after):
                logger.warning("Evaluation %s had lost its evaluator", job_id)
        if now >= self._next_clean:
            self._next_clean = now + _CLEAN_EVERY_S
            self._clean()

    def _clean(self) -> None:
        for job_id in self._store.expired(older_than=self._settings.retention_hours * 3600):
            self._store.delete(job_id)
        folder = evaluations_folder(self._settings.state)
        for entry in folder.iterdir() if folder.is_dir() else ():
            if not self._store.keeps_files(entry.name) and _age(entry) > _LEFTOVER_S:
                shutil.rmtree(entry, ignore_errors=True)

    def _run(self, job: Job) -> None:
        child = self._spawn(job)
        try:
            cause = self._watch(job, child)
        finally:
            _end(child)
        # The child reports its own end; a job that is still ours was left in the middle.
        if cause is None:
            self._store.cancelled(job.id, self._worker)
        elif self._store.release(
            job.id, self._worker, cause=cause, counted=not self._innocent(child)
        ):
            logger.warning("Evaluation %s was interrupted: %s", job.id, cause)

    def _watch(self, job: Job, child: subprocess.Popen[bytes]) -> str | None:
        """Wait for the child; returns why it ended, None when it was stopped as cancelled."""
        next_beat, cancel_until = 0.0, None
        while (status := _wait(child, 0.1)) is None:
            now = time.monotonic()
            if self._stopping.is_set():
                return "the service was stopped"
            if now < next_beat:
                continue
            next_beat = now + _HEARTBEAT_S
            if not self._beat(job):
                return "another evaluator has taken over"
            if self._store.should_stop(job.id, self._worker):
                cancel_until = cancel_until or now + _CANCEL_S
                if now > cancel_until:
                    return None
        return f"killed by signal {-status}" if status < 0 else f"ended with status {status}"

    def _beat(self, job: Job) -> bool:
        return self._store.heartbeat(job.id, self._worker)

    def _innocent(self, child: subprocess.Popen[bytes]) -> bool:
        # On shutdown the server may signal the child before this loop learns of it.
        return self._stopping.is_set() or child.returncode == -signal.SIGTERM

    def _spawn(self, job: Job) -> subprocess.Popen[bytes]:
        threads = str(self._settings.evaluation_threads)
        command = [sys.executable, "-m", "service.evaluation_process", "--job", job.id]
        command += ["--worker", self._worker, "--table", str(self._store.path)]
        command += ["--state", str(self._settings.state)]
        command += ["--parent", str(os.getpid()), "--threads", threads]
        command += ["--models", *map(str, self._settings.models)]
        limits = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        return subprocess.Popen(
            command, cwd=ROOT, env=os.environ | limits, stdin=subprocess.DEVNULL
        )


def _wait(child: subprocess.Popen[bytes], timeout: float) -> int | None:
    try:
        return child.wait(timeout)
    except subprocess.TimeoutExpired:
        return None


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        if _wait(child, _STOP_S) is None:
            child.kill()
            child.wait()


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0

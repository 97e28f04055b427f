"""Ranges done by several processes on this machine: the default of the command line.

Each worker is a fresh interpreter and not a fork: threads of torch and of the runtimes do not
survive a fork. Workers share nothing but the folder of files. They keep this process's niceness.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from pathlib import Path

from robustness.context import Trial
from robustness.executors import inline
from robustness.executors.job import Job, unfinished
from robustness.executors.messages import STOP, Ended, Step
from robustness.executors.workplace import Workplace, workplace
from robustness.progress import Meter
from robustness.ranges import Task

_ROOT = Path(__file__).parents[2]
_LOOK_EVERY_S = 0.1
_STOP_WITHIN_S = 10.0  # a model evaluation of one batch; afterwards a worker is killed
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Processes:
    """A runner (see `robustness.evaluation.Runner`) that shares ranges out to worker processes.

    A worker that dies, by a signal or for want of memory, is replaced, and its range given to
    another. A single range is done in this process: starting another one would take longer.

    Args:
        folders: the artifact of each model on trial.
        workers: how many processes at most, at least 1.

    Raises:
        ValueError: `workers` is below 1.
    """

    def __init__(self, folders: Sequence[Path], *, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self._folders = list(folders)
        self._workers = workers

    def __call__(self, trials: Sequence[Trial], tasks: Iterable[Task]) -> None:
        """Do every task.

        Raises:
            Cancelled: the caller wants to stop; finished files stay.
            WorkerDied: one range ended three workers.
            ValueError: an artifact changed, or not one folder per trial was given.
        """
        jobs = unfinished(trials, tasks)
        first = list(islice(jobs, 2))
        if len(first) < 2:
            inline.run(trials, [job.task for job in first])
            return
        crew = _Crew(workplace(trials, self._folders), self._workers)
        try:
            crew.work(chain(first, jobs), trials[0].meter)
        finally:
            crew.dismiss()


@dataclass(slots=True, kw_only=True)
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    job: Job | None = None


class _Crew:
    """The workers of one evaluation, and what each is busy with."""

    def __init__(self, place: Workplace, size: int) -> None:
        self._place = pickle.dumps(place)
        self._environment = os.environ | dict.fromkeys(_THREADS, str(place.threads))
        self._size = size
        self._workers: list[_Worker] = []
        self._lost: deque[Job] = deque()

    def work(self, jobs: Iterator[Job], meter: Meter) -> None:
        """Have all jobs done."""
        while True:
            self._hand_out(jobs)
            busy = [worker for worker in self._workers if worker.job is not None]
            if not busy:
                return
            meter.before()
            ready = wait([worker.connection for worker in busy], timeout=_LOOK_EVERY_S)
            for worker in busy:
                if worker.connection in ready:
                    self._hear(worker)

    def dismiss(self) -> None:
        """End all workers: those that do not stop in time are killed."""
        try:
            for worker in self._workers:
                self._tell(worker, STOP)
            deadline = time.monotonic() + _STOP_WITHIN_S
            for worker in self._workers:
                self._wait(worker, max(0.0, deadline - time.monotonic()))
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.wait()
                worker.connection.close()

    def _hand_out(self, jobs: Iterator[Job]) -> None:
        """Give everybody something to do, as far as there is."""
        while sum(worker.job is not None for worker in self._workers) < self._size:
            job = self._lost.popleft() if self._lost else next(jobs, None)
            if job is None:
                return
            idle = [worker for worker in self._workers if worker.job is None]
            worker = idle[0] if idle else self._hire()
            worker.job = job
            job.attempts += 1
            self._tell(worker, pickle.dumps(job.task))

    def _hire(self) -> _Worker:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            descriptor = str(theirs.fileno())
            # Ctrl-C is this process's to handle: a mask, unlike a handler, survives the start.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                process = subprocess.Popen(
                    [sys.executable, "-m", "robustness.executors.worker", descriptor],
                    cwd=_ROOT,
                    env=self._environment,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
                worker = _Worker(process=process, connection=Connection(ours.detach()))
                self._workers.append(worker)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._tell(worker, self._place)
        return worker

    def _tell(self, worker: _Worker, message: bytes) -> None:
        try:
            worker.connection.send_bytes(message)
        except OSError:
            # It died; that is noticed, and dealt with, when its end of the socket is read.
            return

    def _hear(self, worker: _Worker) -> None:
        job = worker.job
        try:
            message: Step | Ended = worker.connection.recv()
        except (EOFError, OSError):
            self._bury(worker)
            return
        if job is None:
            return
        if isinstance(message, Step):
            job.tell(message.done, message.stage)
            return
        if message.error is not None:
            raise message.error
        worker.job = None
        job.finish()

    def _bury(self, worker: _Worker) -> None:
        worker.process.kill()
        status = worker.process.wait()
        worker.connection.close()
        self._workers.remove(worker)
        if worker.job is not None:
            worker.job.lose(_how(status))
            self._lost.append(worker.job)

    def _wait(self, worker: _Worker, seconds: float) -> None:
        try:
            worker.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return


def _how(status: int) -> str:
    """How a process ended."""
    return f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"

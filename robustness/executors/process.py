"""Chunks done by several processes on this machine: the default of the command line.

Each worker is a fresh interpreter and not a fork: threads of torch and of the runtimes do not
survive a fork. Workers share the folder of shards, and memory without locks for their progress: a
killed worker leaves nothing half written and nobody waiting.
"""

import ctypes
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from multiprocessing import resource_tracker, sharedctypes
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from robustness.chunks import Chunk
from robustness.context import EvaluationContext
from robustness.executors.base import (
    PendingChunk,
    WorkerContext,
    pending_chunks,
    portable,
    run_inline,
    work,
    worker_context,
)
from robustness.progress import Meter, Progress

_POLL_S = 0.1
_STOP_WITHIN_S = 10.0  # a model evaluation of one batch; afterwards a worker is killed
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_STAGE_BYTES = 256
_MANY_DEATHS = 2  # a chunk that lost so many workers is done alone, to see whether it kills them


class ProcessExecutor:
    """Shares chunks out to worker processes (an `Executor`, see `robustness.evaluation`).

    When a worker dies, by a signal or for want of memory, the pool is replaced and the missing
    chunks are given out again, one by one if it happens again. A single chunk is done in this
    process: starting another one would take longer.

    Args:
        folders: the artifact of each model.
        workers: how many processes at most, at least 1.

    Raises:
        ValueError: `workers` is below 1.
    """

    def __init__(self, folders: Sequence[Path], *, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self._folders = list(folders)
        self._workers = workers

    def __call__(self, contexts: Sequence[EvaluationContext], chunks: Iterable[Chunk]) -> None:
        """Do every chunk.

        Raises:
            Cancelled: the caller wants to stop; finished files stay.
            WorkerDied: one chunk killed three workers.
            ValueError: an artifact changed, or not one folder per model was given.
        """
        pending = pending_chunks(contexts, chunks)
        first = list(islice(pending, 2))
        if len(first) < 2:
            run_inline(contexts, [each.chunk for each in first])
            return
        pool = WorkerPool(worker_context(contexts, self._folders), self._workers)
        try:
            pool.run(chain(first, pending), contexts[0].meter)
        finally:
            pool.close()


class ProgressSnapshot(ctypes.Structure):
    """How far one worker is with its chunk, in memory that it shares with the evaluation."""

    _fields_ = [("done", ctypes.c_longlong), ("stage", ctypes.c_char * _STAGE_BYTES)]


class WorkerPool:
    """A pool of processes that is replaced when one of them dies.

    Args:
        context: what every worker has to know.
        workers: how many processes at most.
    """

    def __init__(self, context: WorkerContext, workers: int) -> None:
        self._context = context
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._processes: set[BaseProcess] = set()
        self._running: dict[Future[None], tuple[PendingChunk, int]] = {}
        self._retries: deque[PendingChunk] = deque()
        self._snapshots: Any = sharedctypes.RawArray(ProgressSnapshot, workers)
        self._stop: Any = sharedctypes.RawValue(ctypes.c_bool, False)

    def run(self, pending: Iterator[PendingChunk], meter: Meter) -> None:
        """Have all chunks done."""
        while self._hand_out(pending):
            meter.before()
            wait(self._running, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            for each, slot in self._running.values():
                found = self._snapshots[slot]
                each.report(found.done, found.stage.decode(errors="ignore"))
            for future in [future for future in self._running if future.done()]:
                self._collect(future)

    def close(self) -> None:
        """End all workers: those that do not stop in time are killed."""
        self._stop.value = True
        if self._pool is not None:
            if wait(self._running, timeout=_STOP_WITHIN_S).not_done:
                for process in self._processes:
                    process.kill()
            self._pool.shutdown(cancel_futures=True)

    def _hand_out(self, pending: Iterator[PendingChunk]) -> bool:
        """Give every worker something to do, as far as there is; whether anything is under way."""
        while len(self._running) < self._width():
            each = self._retries.popleft() if self._retries else next(pending, None)
            if each is None:
                break
            self._submit(each)
        return bool(self._running)

    def _width(self) -> int:
        busy = [each for each, _ in self._running.values()]
        alone = any(each.deaths >= _MANY_DEATHS for each in (*busy, *self._retries))
        return 1 if alone else self._workers

    def _submit(self, each: PendingChunk) -> None:
        slot = min(set(range(self._workers)) - {slot for _, slot in self._running.values()})
        self._snapshots[slot].done = 0
        if self._pool is None:
            self._processes = set()
            self._pool = ProcessPoolExecutor(
                self._workers,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_initialize,
                initargs=(self._snapshots, self._stop),
            )
        before = set(multiprocessing.active_children())
        try:
            with _surroundings(self._context.threads):
                future = self._pool.submit(_work, self._context, each.chunk, slot)
        except BrokenProcessPool:
            self._retries.appendleft(each)
            self._replace()
            return
        self._processes |= set(multiprocessing.active_children()) - before
        self._running[future] = each, slot

    def _collect(self, future: Future[None]) -> None:
        if future not in self._running:
            return
        try:
            future.result()
        except BrokenProcessPool:
            self._replace()
        except MemoryError:
            self._lose(future, "MemoryError")
        else:
            self._running.pop(future)[0].finish()

    def _replace(self) -> None:
        """Drop the broken pool; the next submission starts another one."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        codes = [process.exitcode for process in self._processes]
        # The pool ends the other workers by SIGTERM.
        how = next((c for c in codes if c not in (None, 0, -signal.SIGTERM)), -signal.SIGTERM)
        for future in list(self._running):
            if future.exception() is None:
                self._collect(future)
            else:
                self._lose(future, _named(how or 0))

    def _lose(self, future: Future[None], how: str) -> None:
        each, _ = self._running.pop(future)
        each.lose(how, workers=self._workers)
        self._retries.append(each)


@contextmanager
def _surroundings(threads: int) -> Iterator[None]:
    """What a process that starts in the block inherits: its threads, and no Ctrl-C of its own."""
    before = {name: os.environ.get(name) for name in _THREADS}
    resource_tracker.ensure_running()  # else it would be started, and unblock signals, in the block
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    os.environ.update(dict.fromkeys(_THREADS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _named(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


_SHARED: dict[str, Any] = {}  # of this worker


def _initialize(snapshots: Any, stop: Any) -> None:
    _SHARED.update(snapshots=snapshots, stop=stop)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    # SIGKILL: files are written whole or not at all, and nobody waits for this process.
    os.kill(os.getpid(), signal.SIGKILL)


def _work(context: WorkerContext, chunk: Chunk, slot: int) -> None:
    def show(progress: Progress) -> None:
        snapshot = _SHARED["snapshots"][slot]
        snapshot.stage = progress.stage.encode()[: _STAGE_BYTES - 1]
        snapshot.done = progress.done

    try:
        for _ in work(context, chunk, on_progress=show, should_stop=lambda: _SHARED["stop"].value):
            pass
    except Exception as error:
        raise portable(error) from None

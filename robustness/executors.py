"""Who does the chunks of an evaluation: this process, several of this machine, or a Ray cluster.

A chunk may be begun by one worker and ended by another, because files are written whole or not at
all: whoever works may be killed at any time, and is killed when the evaluation ends early.
"""

import ctypes
import logging
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import chain, islice
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from core.files import remove_leftovers, write_whole
from robustness import store
from robustness.attacking import EvaluationContext
from robustness.chunks import Chunk, chunk_cost, chunk_steps, is_done
from robustness.progress import Meter
from robustness.spec import EvaluationSpec
from robustness.target import Target, torch_threads
from robustness.text_target import open_model
from runtimes.artifact import MANIFEST, open_artifact

ATTEMPTS = 3
"""Workers that one chunk may kill."""

_POLL_S = 0.1
_SPAWN = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
_ROOT = Path(__file__).parents[1]
_PACKAGES = ("core", "models", "data", "runtimes", "export", "robustness")

Files = dict[str, bytes]
"""Contents by name, of files in one folder."""


class WorkerDied(ChildProcessError):
    """A chunk killed every worker that tried it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One chunk, and all that a worker has to know: `digest` and `name` are the model's."""

    spec: EvaluationSpec
    chunk: Chunk
    artifact: Path
    digest: str
    name: str
    folder: Path
    threads: int


_OPENED: dict[tuple[str, str], Target] = {}  # by this worker, by digest and name


def work(task: Task, report: Callable[[int], None] | None = None) -> Iterator[int]:
    """Do one chunk in a worker, which keeps the models that it opened.

    Yields the model evaluations so far at each stored file; `report` gets them after every batch.

    Raises:
        ValueError: the artifact is broken, or another than the evaluation began with.
    """
    target = _OPENED.get((task.digest, task.name))
    if target is None:
        artifact = open_artifact(task.artifact)
        if artifact.digest != task.digest:
            raise ValueError(
                f"the artifact of {task.name!r} must not change during an evaluation: expected "
                f"digest {task.digest[:16]}, got {artifact.digest[:16]}"
            )
        target = replace(open_model(artifact, threads=task.threads), name=task.name)
        _OPENED[task.digest, task.name] = target
    meter = Meter(0, on_progress=report and (lambda progress: report(progress.done)))
    context = EvaluationContext(
        spec=task.spec, target=target, folder=task.folder, meter=meter, threads=task.threads
    )
    # In every call, because torch counts the threads of each calling thread.
    with torch_threads(task.threads):
        for _ in chunk_steps(context, task.chunk):
            yield meter.done


def run_inline(contexts: Sequence[EvaluationContext], chunks: Iterable[Chunk]) -> None:
    """Do every chunk in this process, one after another; `Cancelled` ends it."""
    for chunk in chunks:
        for _ in chunk_steps(contexts[chunk.model], chunk):
            pass


@dataclass(slots=True, kw_only=True)
class Job:
    """A task on its way through workers."""

    task: Task
    context: EvaluationContext
    deaths: int = 0  # of workers that had it, perhaps by chance
    counted: int = 0  # evaluations that the meter knows of; a second attempt adds what is new

    @property
    def what(self) -> str:
        """Which inputs, in words."""
        chunk = self.task.chunk
        return f"inputs {chunk.start + 1}-{chunk.start + len(chunk.inputs)}"

    def report(self, done: int) -> None:
        """Pass on how far a worker is."""
        self.context.meter.after(max(0, done - self.counted))
        self.counted = max(self.counted, done)

    def finish(self) -> None:
        """Count all of it as done."""
        self.report(chunk_cost(self.context, self.task.chunk))

    def lose(self, how: str, *, workers: int) -> None:
        """Note how a worker died; one too many raises WorkerDied."""
        self.deaths += 1
        if self.deaths < ATTEMPTS:
            return
        message = f"{self.what} of {self.task.name!r} killed {self.deaths} workers ({how})"
        if how in ("SIGKILL", "OutOfMemoryError"):
            message += ", probably out of memory" + ("; try --workers 1" if workers > 1 else "")
        raise WorkerDied(message)


class _Executor(ABC):
    """Gives missing chunks out to workers, and again those whose worker died.

    A single chunk is done in this process: starting another one would take longer.
    """

    def __init__(self, folders: Sequence[Path], *, workers: int | None = None) -> None:
        """Take the artifact of each model, and how many workers there may be (at least 1)."""
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self._folders = [folder.absolute() for folder in folders]
        self._workers = workers
        self._running: dict[Any, Job] = {}

    def __call__(self, contexts: Sequence[EvaluationContext], chunks: Iterable[Chunk]) -> None:
        """Do every chunk.

        Raises:
            Cancelled: the caller wants to stop; finished files stay.
            WorkerDied: one chunk killed three workers.
            ConnectionError: there is no Ray cluster at the address.
            ValueError: an artifact changed, or not one folder per model was given.
        """
        if len(self._folders) != len(contexts):
            count, given = len(contexts), len(self._folders)
            raise ValueError(f"folders must be one per model ({count}), got {given}")
        jobs = self._missing(contexts, chunks)
        first = list(islice(jobs, 2))
        if len(first) < 2:
            run_inline(contexts, [job.task.chunk for job in first])
            return
        try:
            workers = self._open(contexts[0].threads)
            self._share_out(chain(first, jobs), workers, contexts[0].meter)
        finally:
            self._close()
            self._running.clear()
            remove_leftovers(contexts[0].folder)

    def _missing(
        self, contexts: Sequence[EvaluationContext], chunks: Iterable[Chunk]
    ) -> Iterator[Job]:
        for chunk in chunks:
            context = contexts[chunk.model]
            task = Task(
                spec=context.spec,
                chunk=chunk,
                artifact=self._folders[chunk.model],
                digest=context.target.digest,
                name=context.target.name,
                folder=context.folder.absolute(),
                threads=context.threads,
            )
            if is_done(context, chunk):
                Job(task=task, context=context).finish()
            else:
                yield Job(task=task, context=context)

    def _share_out(self, jobs: Iterator[Job], workers: int, meter: Meter) -> None:
        lost: list[Job] = []
        while True:
            while len(self._running) < workers:
                job = lost.pop() if lost else next(jobs, None)
                if job is None:
                    break
                job.context.say(job.what)
                self._running[self._submit(job)] = job
            if not self._running:
                return
            meter.before()
            for handle, how in self._collect():
                job = self._running.pop(handle)
                if how is None:
                    job.finish()
                else:
                    job.lose(how, workers=workers)
                    lost.append(job)

    @abstractmethod
    def _open(self, threads: int) -> int:
        """Prepare for work; how many workers there may be."""

    @abstractmethod
    def _submit(self, job: Job) -> Any:
        """Start a job; what stands for it."""

    @abstractmethod
    def _collect(self) -> Iterator[tuple[Any, str | None]]:
        """Wait a moment; what ended, and how its worker died if it did."""

    @abstractmethod
    def _close(self) -> None:
        """End all workers."""


class ProcessExecutor(_Executor):
    """Shares chunks out to processes of this machine."""

    def _open(self, threads: int) -> int:
        self._idle: list[_Worker] = []
        return self._workers or 1

    def _submit(self, job: Job) -> "_Worker":
        worker = self._idle.pop() if self._idle else _Worker()
        worker.submit(job.task)
        return worker

    def _collect(self) -> "Iterator[tuple[_Worker, str | None]]":
        futures = [worker.future for worker in self._running]
        wait(futures, timeout=_POLL_S, return_when=FIRST_COMPLETED)
        for worker, job in list(self._running.items()):
            job.report(worker.done.value)
            if not worker.future.done():
                continue
            try:
                worker.future.result()
            except (BrokenProcessPool, MemoryError):
                yield worker, worker.kill()
            else:
                self._idle.append(worker)
                yield worker, None

    def _close(self) -> None:
        for worker in (*self._idle, *self._running):
            worker.kill()


class ThreadExecutor(_Executor):
    """Shares chunks out to threads of this process, which an endpoint keeps waiting.

    Args:
        workers: how many threads.
        stopped: set when the work ends early, so that nobody waits for an answer any longer.
    """

    def __init__(self, workers: int, stopped: threading.Event) -> None:
        super().__init__([Path()], workers=workers)
        self._stopped = stopped

    def _open(self, threads: int) -> int:
        self._pool = ThreadPoolExecutor(self._workers)
        return self._workers or 1

    def _submit(self, job: Job) -> "tuple[Future[None], Meter]":
        meter = Meter(0, should_stop=self._stopped.is_set)
        context = replace(job.context, meter=meter)
        return self._pool.submit(run_inline, [context], [replace(job.task.chunk, model=0)]), meter

    def _collect(self) -> "Iterator[tuple[tuple[Future[None], Meter], str | None]]":
        running = list(self._running.items())
        wait([future for (future, _), _ in running], _POLL_S, FIRST_COMPLETED)
        for (future, meter), job in running:
            job.report(meter.done)
            if future.done():
                future.result()
                yield (future, meter), None

    def _close(self) -> None:
        if self._running:
            self._stopped.set()
        self._pool.shutdown(cancel_futures=True)


class _Worker:
    """A pool of one process, so that its death concerns one chunk alone."""

    def __init__(self) -> None:
        # Memory without a lock: a killed worker leaves nobody waiting.
        self.done: Any = _SPAWN.RawValue(ctypes.c_longlong)
        self._process: Any = None
        self._pool = ProcessPoolExecutor(
            1, mp_context=_SPAWN, initializer=_initialize, initargs=(self.done,)
        )

    def submit(self, task: Task) -> None:
        """Start a task; `future` is done when it ended."""
        self.done.value = 0
        before = set(multiprocessing.active_children())
        resource_tracker.ensure_running()  # else it would start below, and unblock signals
        # A process that starts here ignores Ctrl-C: this one ends it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self.future = self._pool.submit(_work, task)
        except BrokenProcessPool as error:  # it died between two chunks
            self.future = Future()
            self.future.set_exception(error)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        started = set(multiprocessing.active_children()) - before
        self._process = self._process or next(iter(started), None)

    def kill(self) -> str:
        """End it, if it is not dead yet; how it died."""
        if self._process is not None:
            self._process.kill()
        self._pool.shutdown(cancel_futures=True)
        code = 0 if self._process is None else self._process.exitcode
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"


_SHARED: dict[str, Any] = {}  # of this worker


def _initialize(done: Any) -> None:
    _SHARED["done"] = done
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _work(task: Task) -> None:
    try:
        for _ in work(task, lambda done: setattr(_SHARED["done"], "value", done)):
            pass
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # errors with arguments of their own fail in many ways
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        raise


class RayExecutor(_Executor):
    """Shares chunks out to tasks of Ray, which `requirements/dev.txt` has.

    Workers need no disk in common with this process: artifacts travel to them as bytes and are
    verified there by digest, finished files come back as bytes and are written here. The code
    travels, too; libraries must be installed there in the same versions.

    Args:
        folders: the artifact of each model.
        workers: how many at most; as many as the cluster has processors for when not given.
        address: of a running cluster; one on this machine is started when not given.

    Raises:
        ValueError: Ray is not installed, or `workers` is below 1.
    """

    def __init__(
        self, folders: Sequence[Path], *, workers: int | None = None, address: str | None = None
    ) -> None:
        super().__init__(folders, workers=workers)
        try:
            import ray
        except ImportError as error:
            raise ValueError("--engine ray needs Ray: pip install ray") from error
        self._ray: Any = ray
        self._address = address

    def _open(self, threads: int) -> int:
        self._ours = not self._ray.is_initialized()
        if self._ours:
            # Ray would report its use to its makers.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            cpus = None if self._workers is None else self._workers * threads
            own = {"include_dashboard": False, "num_cpus": cpus}
            self._ray.init(
                address=self._address,
                runtime_env={"py_modules": [str(_ROOT / name) for name in _PACKAGES]},
                logging_level=logging.WARNING,
                log_to_driver=False,
                **(own if self._address is None else {}),
            )
        self._artifacts = {folder: self._ray.put(_files(folder)) for folder in self._folders}
        # A lost task is submitted again by us, with the files that came back from it.
        self._task = self._ray.remote(num_cpus=threads, max_retries=0, num_returns="streaming")(
            ray_worker
        )
        processors = int(self._ray.cluster_resources().get("CPU", 1))
        return self._workers or max(1, processors // threads)

    def _submit(self, job: Job) -> Any:
        task = job.task
        own = store.model_folder(task.folder, task.digest)
        known = _read(own, f"*-{task.chunk.start:06d}.safetensors")
        return self._task.remote(task, self._artifacts[task.artifact], known)

    def _collect(self) -> Iterator[tuple[Any, str | None]]:
        errors = self._ray.exceptions
        ready, _ = self._ray.wait(list(self._running), timeout=_POLL_S)
        for steps in ready:
            job = self._running[steps]
            try:
                done, files = self._ray.get(next(steps))
            except StopIteration:
                yield steps, None
            except errors.RayTaskError as error:
                raise error.cause from None
            except errors.RayError as error:
                yield steps, type(error).__name__
            else:
                _write(store.model_folder(job.task.folder, job.task.digest), files)
                job.report(done)

    def _close(self) -> None:
        if self._ours:
            self._ray.shutdown()
            return
        for steps in self._running:
            self._ray.cancel(steps, force=True)


def ray_worker(task: Task, artifact: Files, known: Files) -> Iterator[tuple[int, Files]]:
    """Do one chunk in a folder of its own, from the files of its model and those known of it.

    Yields model evaluations so far, and the files that were finished since the last step.
    """
    with tempfile.TemporaryDirectory(prefix="assay-") as name:
        home = Path(name)
        folder = store.model_folder(home, task.digest)
        _write(home / "artifact", artifact)
        _write(folder, known)
        seen = set(known)
        for done in work(replace(task, artifact=home / "artifact", folder=home)):
            files = _read(folder, "*")
            yield done, {name: files[name] for name in files.keys() - seen}
            seen |= set(files)


def _write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        write_whole(folder / Path(name).name, content)


def _read(folder: Path, pattern: str) -> Files:
    paths = (path for path in folder.glob(pattern) if not path.name.startswith("."))
    return {path.name: path.read_bytes() for path in paths}


def _files(folder: Path) -> Files:
    """An artifact's files."""
    artifact = open_artifact(folder)
    return {MANIFEST: (folder / MANIFEST).read_bytes()} | {
        name: artifact.read(name) for name in artifact.manifest.files
    }

"""Chunks done on a Ray cluster: many machines, or several processes of this one.

Needs Ray, which `requirements/dev.txt` has. Workers need no disk in common with this process:
artifacts travel to them as bytes and are verified there by digest, finished files come back as
bytes and are written here, so that a run that was killed continues from what was written. The code
travels, too; libraries must be installed there in the same versions.
"""

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from robustness import store
from robustness.chunks import Chunk
from robustness.context import EvaluationContext
from robustness.executors.base import (
    ATTEMPTS,
    PendingChunk,
    WorkerContext,
    pending_chunks,
    work,
    worker_context,
)
from robustness.progress import Meter
from runtimes.artifact import MANIFEST, open_artifact

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("core", "models", "data", "runtimes", "export", "robustness")
_POLL_S = 0.2
_STOP_WITHIN_S = 10.0  # a model evaluation of one batch; afterwards a worker is killed

Files = dict[str, bytes]
"""Contents by name, of files in one folder."""


class RayExecutor:
    """Shares chunks out to tasks of Ray (an `Executor`, see `robustness.evaluation`).

    Ray gives the chunk of a worker that dies to another one.

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
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        try:
            import ray
        except ImportError as error:
            raise ValueError("--engine ray needs Ray: pip install ray") from error
        self._ray: Any = ray
        self._folders = list(folders)
        self._workers = workers
        self._address = address

    def __call__(self, contexts: Sequence[EvaluationContext], chunks: Iterable[Chunk]) -> None:
        """Do every chunk.

        Raises:
            Cancelled: the caller wants to stop; finished files stay.
            WorkerDied: one chunk killed three workers.
            ConnectionError: there is no cluster at that address.
            ValueError: an artifact changed, or not one folder per model was given.
        """
        pending = pending_chunks(contexts, chunks)
        first = next(pending, None)
        if first is None:
            return
        ours = not self._ray.is_initialized()
        if ours:
            self._connect(contexts[0].threads)
        context = worker_context(contexts, self._folders)
        processors = int(self._ray.cluster_resources().get("CPU", 1))
        workers = self._workers or max(1, processors // context.threads)
        tasks = RayTasks(self._ray, context, workers)
        try:
            tasks.run(chain([first], pending), contexts[0].meter)
        finally:
            tasks.close()
            if ours:
                self._ray.shutdown()

    def _connect(self, threads: int) -> None:
        # Ray would report its use to its makers.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings: dict[str, Any] = {
            "runtime_env": {"py_modules": [str(_ROOT / name) for name in _PACKAGES]},
            "logging_level": logging.WARNING,
            "log_to_driver": False,
        }
        if self._address is None:
            settings |= {"include_dashboard": False}
            if self._workers is not None:
                settings |= {"num_cpus": self._workers * threads}
        self._ray.init(address=self._address, **settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How far a task is with its chunk, and the files that it finished since the last step."""

    done: int
    stage: str
    files: Files


class RayTasks:
    """The tasks of one evaluation: one for each chunk, a few of them at a time.

    Args:
        ray: the library, connected to a cluster.
        context: what every worker has to know.
        workers: how many tasks at a time.
    """

    def __init__(self, ray: Any, context: WorkerContext, workers: int) -> None:
        self._ray = ray
        self._context = context
        self._workers = workers
        self._artifacts = [ray.put(_files(model.folder)) for model in context.models]
        self._task = ray.remote(
            num_cpus=context.threads, max_retries=ATTEMPTS - 1, num_returns="streaming"
        )(ray_worker)
        self._running: dict[Any, PendingChunk] = {}

    def run(self, pending: Iterator[PendingChunk], meter: Meter) -> None:
        """Have all chunks done."""
        while True:
            for each in pending if len(self._running) < self._workers else ():
                self._submit(each)
                if len(self._running) == self._workers:
                    break
            if not self._running:
                return
            meter.before()
            ready, _ = self._ray.wait(list(self._running), timeout=_POLL_S)
            for steps in ready:
                self._take(steps)

    def close(self) -> None:
        """End all tasks: the workers of those that do not stop in time are killed."""
        for force in (False, True):
            for steps in self._running:
                self._ray.cancel(steps, force=force)
            last = [steps.completed() for steps in self._running]
            if last:
                _, late = self._ray.wait(last, num_returns=len(last), timeout=_STOP_WITHIN_S)
                if not late:
                    return

    def _submit(self, each: PendingChunk) -> None:
        known = store.model_folder(each.context.folder, each.context.target.digest)
        files = _read(known, f"*-{each.chunk.start:06d}.safetensors")
        artifact = self._artifacts[each.chunk.model]
        self._running[self._task.remote(self._context, each.chunk, artifact, files)] = each

    def _take(self, steps: Any) -> None:
        """Take the next step of a task that has one."""
        each, errors = self._running[steps], self._ray.exceptions
        try:
            step: Step = self._ray.get(next(steps))
        except StopIteration:
            self._running.pop(steps).finish()
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.RayError as error:
            each.deaths = ATTEMPTS - 1  # Ray tried the others
            each.lose(type(error).__name__, workers=self._workers)
        else:
            write_files(
                store.model_folder(each.context.folder, each.context.target.digest), step.files
            )
            each.report(step.done, step.stage)


def ray_worker(
    context: WorkerContext, chunk: Chunk, artifact: Files, known: Files
) -> Iterator[Step]:
    """Do one chunk in a folder of its own.

    Args:
        context: what the evaluation's chunks have in common; its folders are the caller's.
        chunk: what is to be done.
        artifact: the files of its model.
        known: files of the chunk that an earlier run finished.
    """
    with tempfile.TemporaryDirectory(prefix="assay-") as name:
        home, models = Path(name), list(context.models)
        model = models[chunk.model]
        if not model.is_open:
            write_files(home / "artifact", artifact)
            models[chunk.model] = replace(model, folder=home / "artifact")
        here = replace(context, models=tuple(models), folder=home)
        folder = store.model_folder(home, model.digest)
        write_files(folder, known)
        seen = set(known)
        for progress in work(here, chunk):
            files = {k: v for k, v in _read(folder, "*").items() if k not in seen}
            seen |= set(files)
            yield Step(done=progress.done, stage=progress.stage, files=files)


def write_files(folder: Path, files: Files) -> None:
    """Write files into a folder, each whole or not at all."""
    for name, content in files.items():
        store.write_whole(folder / Path(name).name, content)


def _read(folder: Path, pattern: str) -> Files:
    paths = (path for path in folder.glob(pattern) if not path.name.startswith("."))
    return {path.name: path.read_bytes() for path in paths}


def _files(folder: Path) -> Files:
    """An artifact's files."""
    artifact = open_artifact(folder)
    return {MANIFEST: (folder / MANIFEST).read_bytes()} | {
        name: artifact.read(name) for name in artifact.manifest.files
    }

"""Ranges done on a Ray cluster: many machines, or several processes of this one.

Needs Ray, which `requirements/dev.txt` has. Workers need no disk in common with this process:
artifacts travel to them as bytes and are verified there by digest, finished files come back as
bytes and are written here, so that a run that was killed continues from what was written. The code
travels, too; libraries must be installed there in the same versions.
"""

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from robustness import store as shards
from robustness.context import Trial
from robustness.executors.bench import Bench, Files, Glance, write_files
from robustness.executors.job import Job, unfinished
from robustness.executors.workplace import Workplace, workplace
from robustness.progress import Meter
from robustness.ranges import Task
from runtimes.artifact import MANIFEST, open_artifact

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("core", "models", "data", "runtimes", "export", "robustness")
_LOOK_EVERY_S = 0.2
_STOP_WITHIN_S = 10.0  # a model evaluation of one batch; afterwards an actor is killed


class OnRay:
    """A runner (see `robustness.evaluation.Runner`) that shares ranges out to actors of Ray.

    An actor that dies is replaced, and its range given to another.

    Args:
        folders: the artifact of each model on trial.
        workers: how many actors at most; as many as the cluster has processors when not given.
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
            raise ValueError("the engine 'ray' needs Ray: pip install ray") from error
        self._ray: Any = ray
        self._folders = list(folders)
        self._workers = workers
        self._address = address

    def __call__(self, trials: Sequence[Trial], tasks: Iterable[Task]) -> None:
        """Do every task.

        Raises:
            Cancelled: the caller wants to stop; finished files stay.
            WorkerDied: one range ended three actors.
            ConnectionError: there is no cluster at that address.
            ValueError: an artifact changed, or not one folder per trial was given.
        """
        jobs = unfinished(trials, tasks)
        first = next(jobs, None)
        if first is None:
            return
        ours = not self._ray.is_initialized()
        if ours:
            self._connect(trials[0].threads)
        try:
            self._work(trials, chain([first], jobs))
        finally:
            if ours:
                self._ray.shutdown()

    def _connect(self, threads: int) -> None:
        # Ray would report its use to its makers.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings: dict[str, Any] = {
            "runtime_env": {"py_modules": _code()},
            "logging_level": logging.WARNING,
            "log_to_driver": False,
        }
        if self._address is None:
            settings |= {"include_dashboard": False}
            if self._workers is not None:
                settings |= {"num_cpus": self._workers * threads}
        self._ray.init(address=self._address, **settings)

    def _work(self, trials: Sequence[Trial], jobs: Iterator[Job]) -> None:
        place, threads = workplace(trials, self._folders), trials[0].threads
        processors = int(self._ray.cluster_resources().get("CPU", 1))
        crew = _Crew(
            self._ray,
            place,
            size=self._workers or max(1, processors // threads),
            files=self._ray.put([_files(model.folder) for model in place.models]),
        )
        try:
            crew.work(jobs, trials[0].meter)
        finally:
            crew.dismiss()


@dataclass(slots=True, kw_only=True)
class _Member:
    """An actor with what it was asked: references to answers that may not be there yet."""

    actor: Any
    job: Job
    result: Any
    glance: Any


class _Crew:
    """The actors of one evaluation, and what each is busy with."""

    def __init__(self, ray: Any, place: Workplace, *, size: int, files: Any) -> None:
        self._ray = ray
        self._place = place
        self._size = size
        self._files = files
        self._actors = ray.remote(num_cpus=place.threads, max_concurrency=2)(Bench)
        self._idle: list[Any] = []
        self._busy: list[_Member] = []
        self._lost: deque[Job] = deque()

    def work(self, jobs: Iterator[Job], meter: Meter) -> None:
        """Have all jobs done."""
        while True:
            self._hand_out(jobs)
            if not self._busy:
                return
            meter.before()
            self._ray.wait([member.result for member in self._busy], timeout=_LOOK_EVERY_S)
            for member in list(self._busy):
                self._hear(member)

    def dismiss(self) -> None:
        """End all actors: those that do not stop in time are killed."""
        actors = [member.actor for member in self._busy] + self._idle
        if self._busy:
            results = [member.result for member in self._busy]
            for actor in actors:
                actor.stop.remote()
            self._ray.wait(results, num_returns=len(results), timeout=_STOP_WITHIN_S)
        if actors:
            left = [actor.leave.remote() for actor in actors]
            self._ray.wait(left, num_returns=len(left), timeout=_STOP_WITHIN_S)
        for actor in actors:
            self._ray.kill(actor)

    def _hand_out(self, jobs: Iterator[Job]) -> None:
        """Give everybody something to do, as far as there is."""
        while len(self._busy) < self._size:
            job = self._lost.popleft() if self._lost else next(jobs, None)
            if job is None:
                return
            job.attempts += 1
            actor = self._idle.pop() if self._idle else self._hire()
            member = _Member(
                actor=actor,
                job=job,
                result=actor.work.remote(job.task, _known(job)),
                glance=actor.look.remote(job.task.model),
            )
            self._busy.append(member)

    def _hire(self) -> Any:
        return self._actors.remote(self._place, self._files)

    def _hear(self, member: _Member) -> None:
        """Take what a member has to say, if anything."""
        errors = self._ray.exceptions
        try:
            ended = self._is_there(member.result)
            # At the end, too: what a glance has shown is not shown again.
            if ended or self._is_there(member.glance):
                self._see(member, again=not ended)
            if ended:
                _keep(member.job, self._ray.get(member.result) or {})
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.RayError as error:
            self._busy.remove(member)
            member.job.lose(f"by {type(error).__name__}")
            self._lost.append(member.job)
            return
        if ended:
            self._busy.remove(member)
            self._idle.append(member.actor)
            member.job.finish()

    def _see(self, member: _Member, *, again: bool) -> None:
        glance: Glance = self._ray.get(member.glance)
        _keep(member.job, glance.files)
        member.job.tell(glance.done, glance.stage)
        if again:
            member.glance = member.actor.look.remote(member.job.task.model)

    def _is_there(self, reference: Any) -> bool:
        return bool(self._ray.wait([reference], timeout=0)[0])


def _code() -> list[str]:
    """The packages that evaluate, for machines that do not have them."""
    return [str(_ROOT / name) for name in _PACKAGES]


def _files(folder: Path) -> Files:
    """An artifact's files."""
    artifact = open_artifact(folder)
    return {MANIFEST: (folder / MANIFEST).read_bytes()} | {
        name: artifact.read(name) for name in artifact.manifest.files
    }


def _known(job: Job) -> Files:
    """The files of a range that an earlier attempt finished."""
    folder = shards.model_folder(job.trial.folder, job.trial.target.digest)
    paths = folder.glob(f"[!.]*-{job.task.start:06d}.safetensors")
    return {path.name: path.read_bytes() for path in paths}


def _keep(job: Job, files: Files) -> None:
    write_files(shards.model_folder(job.trial.folder, job.trial.target.digest), files)

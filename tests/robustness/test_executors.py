"""Chunks shared out to worker processes: the same bytes, whoever works and whoever dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from data.sources import open_images
from robustness.__main__ import main
from robustness.chunks import Chunk
from robustness.evaluation import Executor, evaluate
from robustness.executors.base import (
    ModelReference,
    PendingChunk,
    WorkerContext,
    WorkerDied,
    run_inline,
    work,
)
from robustness.executors.process import ProcessExecutor
from robustness.executors.ray import RayExecutor
from robustness.progress import Cancelled, Progress
from robustness.spec import EvaluationSpec
from runtimes.artifact import Artifact, open_artifact

SPEC = EvaluationSpec.model_validate(
    {
        "attacks": [
            {"name": "pgd", "eps": ["6/255"], "steps": 20},
            {"name": "corruptions", "names": ["contrast"], "severities": [2]},
        ]
    }
)


def contents(folder: Path) -> dict[str, bytes]:
    found = sorted((folder / "shards").rglob("*"))
    return {str(p.relative_to(folder)): p.read_bytes() for p in found if p.is_file()}


def living(process: psutil.Process, what: str = "--multiprocessing-fork") -> list[psutil.Process]:
    """The workers of a process: all its children whose command has such a word."""
    found = []
    for child in process.children(recursive=True):
        try:
            if any(what in word for word in child.cmdline()):
                found.append(child)
        except psutil.Error:  # it died, or was not reaped yet
            continue
    return found


def workers() -> list[psutil.Process]:
    return living(psutil.Process())


def run(
    pair: list[Artifact], images: Path, folder: Path, executor: Executor, **options: Any
) -> dict[str, bytes]:
    inputs = open_images(images, label_names=pair[0].labels)
    evaluate(SPEC, pair, inputs, folder, executor=executor, **options)
    return contents(folder)


@pytest.fixture(scope="module")
def pair(artifacts: Any) -> list[Artifact]:
    return [open_artifact(artifacts.elliptical), open_artifact(artifacts.dot)]


@pytest.fixture(scope="module")
def expected(
    artifacts: Any, pair: list[Artifact], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    return run(pair, artifacts.images, tmp_path_factory.mktemp("inline"), run_inline)


def folders(pair: list[Artifact]) -> list[Path]:
    return [artifact.folder for artifact in pair]


def test_bytes_do_not_depend_on_workers_nor_on_one_that_is_killed(
    artifacts: Any, pair: list[Artifact], expected: dict[str, bytes], tmp_path: Path
) -> None:
    seen: list[int] = []
    reported: list[Progress] = []
    killed: list[psutil.Process] = []

    def watch(progress: Progress) -> None:
        seen.append(len(workers()))
        reported.append(progress)
        if "pgd" in progress.stage and not killed:
            killed.append(workers()[0])
            killed[0].kill()

    executor = ProcessExecutor(folders(pair), workers=2)
    assert run(pair, artifacts.images, tmp_path, executor, on_progress=watch) == expected
    assert killed and max(seen) == 2 and workers() == []
    assert [p.done for p in reported] == sorted(p.done for p in reported)
    assert reported[-1].done == reported[-1].total


@pytest.mark.slow
def test_chunk_that_kills_three_workers_is_named(
    artifacts: Any, pair: list[Artifact], tmp_path: Path
) -> None:
    killed: set[int] = set()

    def kill(_progress: Progress) -> None:
        for worker in workers():
            killed.add(worker.pid)
            worker.kill()

    executor = ProcessExecutor([pair[1].folder], workers=1)
    message = r"inputs 1-32 of 'dot' killed 3 workers \(SIGKILL\), probably out of memory$"
    with pytest.raises(WorkerDied, match=message):
        run(pair[1:], artifacts.images, tmp_path, executor, on_progress=kill)
    assert len(killed) == 3 and workers() == []


def test_message_about_a_deadly_chunk_says_what_to_try(make_target: Any, tmp_path: Path) -> None:
    chunk = Chunk(model=0, start=32, inputs=np.zeros((2, 1, 6, 6), np.float32), labels=None)
    context: Any = type("EvaluationContext", (), {"target": make_target(2)})
    each = PendingChunk(context=context, chunk=chunk, deaths=2)
    message = r"inputs 33-34 of 'linear' killed 3 workers \(SIGKILL\), .* try --workers 1"
    with pytest.raises(WorkerDied, match=message):
        each.lose("SIGKILL", workers=4)


def test_cancelled_run_leaves_no_worker_and_is_continued(
    artifacts: Any, pair: list[Artifact], expected: dict[str, bytes], tmp_path: Path
) -> None:
    def enough() -> bool:
        return len(list(tmp_path.rglob("result-*"))) >= 2

    executor = ProcessExecutor(folders(pair), workers=2)
    with pytest.raises(Cancelled):
        run(pair, artifacts.images, tmp_path, executor, should_stop=enough)
    assert workers() == []
    before = set(contents(tmp_path))
    assert before and before < set(expected)
    assert run(pair, artifacts.images, tmp_path, run_inline) == expected
    seen: list[Any] = []
    reported: list[Progress] = []

    def watch(progress: Progress) -> None:
        seen.extend(workers())
        reported.append(progress)

    assert run(pair, artifacts.images, tmp_path, executor, on_progress=watch) == expected
    assert seen == [] and reported[-1].done == reported[-1].total


def test_worker_refuses_an_artifact_that_changed_meanwhile(
    pair: list[Artifact], tmp_path: Path
) -> None:
    model = ModelReference(folder=pair[0].folder, digest="0" * 64, name="changed")
    context = WorkerContext(spec=SPEC, models=(model,), folder=tmp_path, threads=1)
    chunk = Chunk(model=0, start=0, inputs=np.zeros((1, 1, 8, 8), np.float32), labels=None)
    with pytest.raises(ValueError, match="'changed' must not change during an evaluation"):
        next(work(context, chunk))


@pytest.mark.parametrize(
    ("count", "given", "message"),
    [(0, 1, "workers must be at least 1, got 0"), (1, 2, r"one per model \(1\), got 2")],
)
def test_unfit_executor_is_refused(
    count: int, given: int, message: str, artifacts: Any, pair: list[Artifact], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        executor = ProcessExecutor(folders(pair)[:given], workers=count)
        run(pair[:1], artifacts.images, tmp_path, executor)


def start(artifacts: Any, folder: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A command at work, and its two workers."""
    # A job in the background of a shell ignores Ctrl-C, and so would its children.
    command = [
        "env", "--default-signal=INT",
        sys.executable, "-m", "robustness", "evaluate", "--artifact", str(artifacts.elliptical),
        "--data", str(artifacts.images), "--attack", "pgd", "--eps", "6/255", "20/255",
        "--steps", "400", "--workers", "2", "--output", str(folder),
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: any(folder.rglob("clean-*")) or process.poll() is not None)
    found = living(psutil.Process(process.pid))
    assert len(found) == 2
    return process, found


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not ready() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_workers_end_when_their_parent_is_killed(artifacts: Any, tmp_path: Path) -> None:
    process, found = start(artifacts, tmp_path)
    process.kill()
    assert not psutil.wait_procs(found, timeout=15)[1]
    process.communicate()


@pytest.mark.slow
def test_interrupt_stops_cleanly_and_says_how_to_go_on(artifacts: Any, tmp_path: Path) -> None:
    process, found = start(artifacts, tmp_path)
    for each in [process.pid, *(child.pid for child in found)]:  # as a terminal does
        os.kill(each, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; the same command continues" in errors and "Traceback" not in errors
    assert not psutil.wait_procs(found, timeout=1)[1]


@pytest.mark.slow
def test_ray_leaves_the_same_bytes_though_a_worker_is_killed(
    artifacts: Any, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    options = [
        "evaluate", "--artifact", str(artifacts.dot), "--data", str(artifacts.images),
        "--attack", "pgd", "--eps", "6/255", "--steps", "600", "--workers", "2", "--output",
    ]  # fmt: skip
    on_ray, here = tmp_path / "ray", tmp_path / "here"
    command = [sys.executable, "-m", "robustness", *options, str(on_ray), "--engine", "ray"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: any(on_ray.rglob("clean-*")) or process.poll() is not None)
            assert process.poll() is None, process.communicate()[1]
            victims = living(psutil.Process(process.pid), "ray::ray_worker")
            assert victims
            victims[0].kill()
            _, errors = process.communicate(timeout=180)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert main([*options, str(here)]) == 0
    assert contents(on_ray) == contents(here)


def test_number_of_ray_workers_must_count_something(artifacts: Any) -> None:
    pytest.importorskip("ray")
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        RayExecutor([artifacts.dot], workers=0)

"""Chunks shared out to workers: the same bytes, whoever works and whoever dies."""

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
from robustness.executors import (
    Job,
    ProcessExecutor,
    RayExecutor,
    Task,
    WorkerDied,
    run_inline,
    work,
)
from robustness.progress import Cancelled, Progress
from robustness.spec import EvaluationSpec
from runtimes.artifact import Artifact, open_artifact
from tests.robustness.conftest import contents

SPEC = EvaluationSpec.model_validate(
    {
        "attacks": [
            {"name": "pgd", "eps": ["6/255"], "steps": 20},
            {"name": "corruptions", "names": ["contrast"], "severities": [2]},
        ]
    }
)


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


def run(pair: list[Artifact], folder: Path, executor: Executor, **options: Any) -> dict[str, bytes]:
    inputs = open_images(pair[0].folder.parent / "images", label_names=pair[0].labels)
    evaluate(SPEC, pair, inputs, folder, executor=executor, **options)
    return contents(folder)


@pytest.fixture(scope="module")
def pair(artifacts: Path) -> list[Artifact]:
    return [open_artifact(artifacts / "elliptical"), open_artifact(artifacts / "dot")]


@pytest.fixture(scope="module")
def expected(pair: list[Artifact], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return run(pair, tmp_path_factory.mktemp("inline"), run_inline)


def folders(pair: list[Artifact]) -> list[Path]:
    return [artifact.folder for artifact in pair]


def test_bytes_do_not_depend_on_workers_nor_on_one_that_is_killed(
    pair: list[Artifact], expected: dict[str, bytes], tmp_path: Path
) -> None:
    seen: list[int] = []
    reported: list[Progress] = []
    killed: list[psutil.Process] = []

    def watch(progress: Progress) -> None:
        seen.append(len(workers()))
        reported.append(progress)
        if any(tmp_path.rglob("clean-*")) and not killed:
            killed.append(workers()[0])
            killed[0].kill()

    executor = ProcessExecutor(folders(pair), workers=2)
    assert run(pair, tmp_path, executor, on_progress=watch) == expected
    assert killed and max(seen) == 2 and workers() == []
    assert [p.done for p in reported] == sorted(p.done for p in reported)
    assert reported[-1].done == reported[-1].total


@pytest.mark.slow
def test_chunk_that_kills_three_workers_is_named(pair: list[Artifact], tmp_path: Path) -> None:
    killed: set[int] = set()

    def kill(_progress: Progress) -> None:
        for worker in workers():
            killed.add(worker.pid)
            worker.kill()

    executor = ProcessExecutor([pair[1].folder], workers=1)
    message = r"inputs 1-32 of 'dot' killed 3 workers \(SIGKILL\), probably out of memory$"
    with pytest.raises(WorkerDied, match=message):
        run(pair[1:], tmp_path, executor, on_progress=kill)
    assert len(killed) == 3 and workers() == []


@pytest.mark.slow
def test_cancelled_run_leaves_no_worker_and_is_continued(
    pair: list[Artifact], expected: dict[str, bytes], tmp_path: Path
) -> None:
    def enough() -> bool:
        return len(list(tmp_path.rglob("result-*"))) >= 2

    executor = ProcessExecutor(folders(pair), workers=1)
    with pytest.raises(Cancelled):
        run(pair, tmp_path, executor, should_stop=enough)
    assert workers() == []
    before = set(contents(tmp_path))
    assert before and before < set(expected)
    assert run(pair, tmp_path, run_inline) == expected
    seen: list[Any] = []
    reported: list[Progress] = []

    def watch(progress: Progress) -> None:
        seen.extend(workers())
        reported.append(progress)

    assert run(pair, tmp_path, executor, on_progress=watch) == expected
    assert seen == [] and reported[-1].done == reported[-1].total


def test_unfit_executor_task_and_deadly_chunk_are_refused(
    pair: list[Artifact], tmp_path: Path
) -> None:
    for kind in (ProcessExecutor, RayExecutor):
        with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
            kind(folders(pair), workers=0)
    with pytest.raises(ValueError, match=r"one per model \(1\), got 2"):
        run(pair[:1], tmp_path, ProcessExecutor(folders(pair), workers=1))
    chunk = Chunk(model=0, start=32, inputs=np.zeros((2, 1, 8, 8), np.float32), labels=None)
    task = Task(
        spec=SPEC, chunk=chunk, artifact=pair[0].folder, digest="0" * 64, name="one",
        folder=tmp_path, threads=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match="'one' must not change during an evaluation"):
        next(work(task))
    context: Any = None
    job = Job(task=task, context=context)
    job.lose("SIGKILL", workers=4)
    job.lose("SIGKILL", workers=4)
    message = r"inputs 33-34 of 'one' killed 3 workers \(SIGKILL\), .* try --workers 1"
    with pytest.raises(WorkerDied, match=message):
        job.lose("SIGKILL", workers=4)


def command(artifacts: Path, folder: Path, *more: str) -> list[str]:
    """What `SPEC` asks for, as a command."""
    return [
        "evaluate", "--artifact", f"{artifacts}/elliptical", "--compare", f"{artifacts}/dot",
        "--data", f"{artifacts}/images", "--attack", "pgd:steps=20",
        "corruptions:names=contrast:severities=2", "--eps", "6/255", "--output", str(folder),
        *more,
    ]  # fmt: skip


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    """A command at work that has finished a file of an attack."""
    # A job in the background of a shell ignores Ctrl-C, and so would its children.
    words = ["env", "--default-signal=INT", sys.executable, "-m", "robustness", *words]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: any(folder.rglob("pgd*")) or process.poll() is not None)
    return process


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not ready() and time.monotonic() < deadline:
        time.sleep(0.002)


@pytest.mark.slow
def test_killed_command_leaves_no_worker_and_continues_to_the_same_bytes(
    artifacts: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    process = start(command(artifacts, tmp_path, "--workers", "2"), tmp_path)
    found = living(psutil.Process(process.pid))
    process.kill()
    assert len(found) == 2 and not psutil.wait_procs(found, timeout=15)[1]
    process.communicate()
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("pgd*.safetensors")}
    assert 1 <= len(finished) < 6
    assert main(command(artifacts, tmp_path, "--workers", "1")) == 0
    assert all(path.stat().st_mtime_ns == time_ns for path, time_ns in finished.items())
    assert contents(tmp_path) == expected


@pytest.mark.slow
def test_interrupt_stops_cleanly_and_says_how_to_go_on(artifacts: Path, tmp_path: Path) -> None:
    words = command(artifacts, tmp_path, "--workers", "2", "--attack", "apgd-ce")
    process = start(words, tmp_path)
    found = living(psutil.Process(process.pid))
    for each in [process.pid, *(child.pid for child in found)]:  # as a terminal does
        os.kill(each, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; the same command continues" in errors and "Traceback" not in errors
    assert not psutil.wait_procs(found, timeout=1)[1]


@pytest.mark.slow
def test_ray_leaves_the_same_bytes_though_a_worker_is_killed(
    pair: list[Artifact], expected: dict[str, bytes], tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    killed: list[psutil.Process] = []

    def watch(_progress: Progress) -> None:
        if any(tmp_path.rglob("clean-*")) and not killed:
            killed.extend(living(psutil.Process(), "ray::ray_worker")[:1])
            killed[0].kill()

    executor = RayExecutor(folders(pair), workers=2)
    assert run(pair, tmp_path, executor, on_progress=watch) == expected
    assert killed


@pytest.mark.slow
def test_cancelled_run_on_a_cluster_leaves_no_task(
    pair: list[Artifact], expected: dict[str, bytes], tmp_path: Path
) -> None:
    ray: Any = pytest.importorskip("ray")
    code = str(Path(__file__).parents[2])
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": code}})
    try:
        with pytest.raises(Cancelled):
            run(
                pair,
                tmp_path,
                RayExecutor(folders(pair)),
                should_stop=lambda: any(tmp_path.rglob("result-*")),
            )
        wait_until(lambda: not living(psutil.Process(), "ray::ray_worker"))
        assert not living(psutil.Process(), "ray::ray_worker")
        assert ray.is_initialized()
        before = contents(tmp_path)
        assert before and set(before) < set(expected)
        assert run(pair, tmp_path, RayExecutor(folders(pair))) == expected
    finally:
        ray.shutdown()

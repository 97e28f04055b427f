"""Ranges shared out to worker processes: the same bytes, whoever works and whoever dies."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from data.sources import open_images
from robustness.evaluation import Runner, evaluate
from robustness.executors import inline
from robustness.executors.job import WorkerDied
from robustness.executors.process import Processes
from robustness.progress import Cancelled, Progress
from robustness.spec import EvaluationSpec
from runtimes.artifact import Artifact, open_artifact

SPEC = {
    "attacks": [
        {"name": "pgd", "eps": ["6/255"], "steps": 20},
        {"name": "corruptions", "names": ["contrast"], "severities": [2]},
    ]
}


def contents(folder: Path) -> dict[str, bytes]:
    found = sorted((folder / "shards").rglob("*"))
    return {str(p.relative_to(folder)): p.read_bytes() for p in found if p.is_file()}


def workers() -> list[psutil.Process]:
    """The living worker processes of this one; they start no others."""
    return [child for child in psutil.Process().children() if _works(child)]


def _works(process: psutil.Process) -> bool:
    try:
        return "robustness.executors.worker" in process.cmdline()
    except psutil.Error:  # it died, or was not reaped yet
        return False


def gone(processes: list[psutil.Process], *, within: float = 10.0) -> bool:
    return not psutil.wait_procs(processes, timeout=within)[1]


def run(
    pair: list[Artifact], images: Path, folder: Path, runner: Runner, **options: Any
) -> dict[str, bytes]:
    inputs = open_images(images, label_names=pair[0].labels)
    spec = EvaluationSpec.model_validate(SPEC)
    evaluate(spec, pair, inputs, folder, runner=runner, **options)
    return contents(folder)


@pytest.fixture(scope="module")
def pair(artifacts: Any) -> list[Artifact]:
    return [open_artifact(artifacts.elliptical), open_artifact(artifacts.dot)]


@pytest.fixture(scope="module")
def expected(
    artifacts: Any, pair: list[Artifact], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    return run(pair, artifacts.images, tmp_path_factory.mktemp("inline"), inline.run)


def folders(pair: list[Artifact]) -> list[Path]:
    return [artifact.folder for artifact in pair]


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_bytes_do_not_depend_on_the_number_of_workers(
    count: int, artifacts: Any, pair: list[Artifact], expected: dict[str, bytes], tmp_path: Path
) -> None:
    seen: list[int] = []
    told: list[Progress] = []

    def watch(progress: Progress) -> None:
        seen.append(len(workers()))
        told.append(progress)

    runner = Processes(folders(pair), workers=count)
    assert run(pair, artifacts.images, tmp_path, runner, on_progress=watch) == expected
    assert max(seen) == count and workers() == []
    assert [p.done for p in told] == sorted(p.done for p in told)
    assert told[-1].done == told[-1].total
    assert any("pgd" in p.stage for p in told)


def test_killed_worker_has_its_range_given_to_another(
    artifacts: Any, pair: list[Artifact], expected: dict[str, bytes], tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill(progress: Progress) -> None:
        if "pgd" in progress.stage and len(killed) < 2 and workers():
            victim = workers()[0].pid
            if victim not in killed:
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)

    runner = Processes(folders(pair), workers=2)
    assert run(pair, artifacts.images, tmp_path, runner, on_progress=kill) == expected
    assert len(killed) == 2


def test_range_that_ends_three_workers_is_named(
    artifacts: Any, pair: list[Artifact], tmp_path: Path
) -> None:
    killed: set[int] = set()

    def kill(_progress: Progress) -> None:
        for worker in workers():
            killed.add(worker.pid)
            worker.kill()

    runner = Processes([pair[1].folder], workers=1)
    with pytest.raises(WorkerDied, match="inputs 1 to 32 of 'dot' ended 3 workers.*SIGKILL"):
        run(pair[1:], artifacts.images, tmp_path, runner, on_progress=kill)
    assert len(killed) == 3 and workers() == []


def test_wish_to_stop_ends_the_workers_and_the_next_run_goes_on(
    artifacts: Any, pair: list[Artifact], expected: dict[str, bytes], tmp_path: Path
) -> None:
    def enough() -> bool:
        return len(list(tmp_path.rglob("verdict-*"))) >= 2

    runner = Processes(folders(pair), workers=2)
    with pytest.raises(Cancelled):
        run(pair, artifacts.images, tmp_path, runner, should_stop=enough)
    assert workers() == []
    before = set(contents(tmp_path))
    assert before and before < set(expected)
    assert run(pair, artifacts.images, tmp_path, inline.run) == expected


def test_finished_run_starts_no_worker(
    artifacts: Any, pair: list[Artifact], expected: dict[str, bytes], tmp_path: Path
) -> None:
    run(pair, artifacts.images, tmp_path, inline.run)
    seen: list[Any] = []
    told: list[Progress] = []

    def watch(progress: Progress) -> None:
        seen.extend(workers())
        told.append(progress)

    runner = Processes(folders(pair), workers=2)
    assert run(pair, artifacts.images, tmp_path, runner, on_progress=watch) == expected
    assert seen == [] and told[-1].done == told[-1].total


def test_artifact_that_changed_meanwhile_is_refused(
    artifacts: Any, pair: list[Artifact], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(pair[0].folder, other)
    runner = Processes([other, other], workers=1)
    with pytest.raises(ValueError, match="'dot' must not change during an evaluation"):
        run(pair, artifacts.images, tmp_path / "out", runner)
    assert workers() == []


@pytest.mark.parametrize(
    ("count", "given", "message"),
    [(0, 1, "workers must be at least 1, got 0"), (1, 2, r"one per model \(1\), got 2")],
)
def test_unfit_engine_is_refused(
    count: int, given: int, message: str, artifacts: Any, pair: list[Artifact], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        runner = Processes(folders(pair)[:given], workers=count)
        run(pair[:1], artifacts.images, tmp_path, runner)


def start(artifacts: Any, folder: Path) -> subprocess.Popen[str]:
    # A job in the background of a shell ignores Ctrl-C, and so would its children.
    command = [
        "env", "--default-signal=INT",
        sys.executable, "-m", "robustness", "evaluate", "--artifact", str(artifacts.elliptical),
        "--data", str(artifacts.images), "--attack", "pgd", "--eps", "6/255", "20/255",
        "--steps", "400", "--workers", "2", "--output", str(folder),
    ]  # fmt: skip
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def children(process: subprocess.Popen[str], ready: Callable[[], bool]) -> list[psutil.Process]:
    """The workers of a command, once it is at work."""
    deadline = time.monotonic() + 90
    while not ready() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return psutil.Process(process.pid).children(recursive=True)


def test_workers_end_at_once_when_their_parent_is_killed(artifacts: Any, tmp_path: Path) -> None:
    process = start(artifacts, tmp_path)
    found = children(process, lambda: any(tmp_path.rglob("clean-*")))
    assert len(found) == 2
    process.kill()
    assert gone(found, within=5)
    process.communicate()


def test_interrupt_stops_cleanly_and_says_how_to_go_on(artifacts: Any, tmp_path: Path) -> None:
    process = start(artifacts, tmp_path)
    found = children(process, lambda: any(tmp_path.rglob("clean-*")))
    assert len(found) == 2
    for each in [process.pid, *(child.pid for child in found)]:  # as a terminal does
        os.kill(each, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; the same command continues" in errors and "Traceback" not in errors
    assert gone(found, within=1)

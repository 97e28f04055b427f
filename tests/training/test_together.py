import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from core.files import sha256
from tests.training.conftest import start
from training import run as records
from training.__main__ import main
from training.state import saved_step


def test_runs_that_train_together_end_as_each_would_alone_also_beside_one_that_fails(
    text_recipe: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = text_recipe.parent / "runs"
    broken = text_recipe.with_name("broken.yaml")
    broken.write_text(text_recipe.read_text().replace("imdb", "nowhere").replace("words", "none"))
    words, options = ["size=small", "labels=[neg, pos]"], ["--runs", str(runs), "--at-once", "2"]
    both = [str(broken), str(text_recipe), *words, *options]
    assert main(["all", *both]) == 1
    told = capfd.readouterr().out
    for variant in ("transject", "transformer"):
        name = f"words-{variant}-small"
        alone = start(text_recipe, f"alone-{name}", f"variant={variant}", *words)
        metrics = alone.run()
        assert sha256(runs / name / records.BEST) == sha256(alone.folder / records.BEST)
        assert f"{name}: finished after " in told
        assert f"test accuracy {metrics['test_accuracy']:.4g}, test loss " in told
        assert f"none-{variant}-small: failed: " in told and "nowhere" in told
    assert told.endswith("2 of 4 runs are finished\n")
    assert main(["all", str(text_recipe), *words, *options]) == 0, "nothing is left to do"
    assert capfd.readouterr().out == "2 of 2 runs are finished\n"
    assert main(["all", str(text_recipe), str(text_recipe), *words, *options]) == 2
    assert (
        "two runs would share a folder: words-transformer-small, words-t" in capfd.readouterr().err
    )
    assert main(["all", str(text_recipe), *words, "train.lr=1.0e-3", *options]) == 2
    assert "words-transject-small holds a run of another recipe" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("option", "rule"),
    [("--at-once=0", "--at-once must be above 0, got 0"), ("--minutes=-1", "--minutes must be")],
)
def test_nothing_trains_in_no_time_or_no_slot(
    text_recipe: Path, option: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["all", str(text_recipe), option]) == 2
    assert rule in capsys.readouterr().err


def test_when_the_time_is_over_runs_are_saved_and_the_same_command_continues(
    recipe_file: Path,
) -> None:
    folder = recipe_file.parent / "runs" / "tiny"
    command = [sys.executable, "-m", "training", "all", str(recipe_file), "train.epochs=100000"]
    command += ["--runs", str(folder.parent), "--minutes", "60", "--at-once", "2"]
    # The time is over for the run itself; or whoever asked for the runs is killed.
    for number, code in ((signal.SIGALRM, 1), (signal.SIGKILL, -signal.SIGKILL)):
        before = len(_sessions(folder))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                _wait_for(lambda before=before: len(_sessions(folder)) > before)
                _wait_for((folder / records.METRICS).is_file)
                of_run = psutil.Process(process.pid).children(recursive=True)[-1].pid
                os.kill(of_run if number == signal.SIGALRM else process.pid, number)
                told, _ = process.communicate(timeout=60)  # until the last of them has ended
            finally:
                process.kill()
        assert process.returncode == code
        assert "tiny: saved; continue with the same command" in told
    assert 0 == _sessions(folder)[0] < _sessions(folder)[1] < saved_step(folder)


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def _sessions(folder: Path) -> list[int]:
    """The first steps of the sessions of a run."""
    path = folder / records.RUN
    return [s["step"] for s in json.loads(path.read_text())["sessions"]] if path.is_file() else []

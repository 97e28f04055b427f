import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.exported import write_idx
from tests.training.conftest import start
from training import run as records
from training.__main__ import main
from training.order import Batch
from training.step import Stepper
from training.trainer import Trainer

ROOT = Path(__file__).parents[2]
OFTEN, TEACHER = ["train.checkpoint_seconds=0"], "distillation={teacher_epochs: 2, start: 1}"
ATTACK = "adversarial={eps: 8/255, alpha: 4/255, steps: 1}"


class Killed(BaseException):
    """What the tests raise in the place of a signal that nothing can catch."""


def assert_same(folder: Path, *files: str) -> None:
    """The run `whole` and the one that was `killed` left the same weights and files."""
    one, other = folder / "whole", folder / "killed"
    for name in (records.BEST, records.LAST):
        whole, resumed = load_file(one / name), load_file(other / name)
        assert whole.keys() == resumed.keys()
        assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in files)


def kill_at(trainer: Trainer, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Stepper.__call__

    def until_killed(self: Stepper, number: int, batch: Batch) -> Tensor:
        if number == step:
            raise Killed
        return call(self, number, batch)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Stepper, "__call__", until_killed)
        trainer.run()


@pytest.mark.parametrize(
    ("file", "overrides", "steps"),
    [
        ("recipe_file", [*OFTEN, TEACHER, "train.ema=0.9", "train.accumulate=2"], (0, 8, 13, 20)),
        ("recipe_file", [ATTACK, "train.patience=2"], (0, 8, 13, 20)),
        ("text_recipe", ["variant=transformer", "train.epochs=2", *OFTEN], (11,)),
    ],
)
def test_run_killed_at_any_step_resumes_to_the_same_weights(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    overrides: list[str],
    steps: tuple[int, ...],
) -> None:
    recipe: Path = request.getfixturevalue(file)
    start(recipe, "whole", *overrides).run()
    for step in steps:
        kill_at(start(recipe, "killed", *overrides), step, monkeypatch)
    assert main(["fit", "--resume", str(recipe.parent / "killed")]) == 0
    assert_same(recipe.parent, *[records.TOKENIZER] * (file == "text_recipe"))
    for name in ("history.csv", "steps.csv"):
        texts = ((recipe.parent / run / name).read_text() for run in ("whole", "killed"))
        losses = [[line.split(",")[2] for line in text.splitlines()] for text in texts]
        assert losses[0] == losses[1]


def fit_until_checkpoint(run: Path, *arguments: str, after: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "training", "fit", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    state, deadline = run / records.STATE, time.monotonic() + 120
    while not (state.exists() and state.stat().st_mtime > after):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    return process


@pytest.mark.slow
def test_sigkill_and_sigint_lose_nothing(recipe_file: Path) -> None:
    choice = ["train.epochs=25", "train.checkpoint_seconds=0.05"]
    run = recipe_file.parent / "killed"
    process = fit_until_checkpoint(run, str(recipe_file), *choice, "--output", str(run), after=0)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    saved = (run / records.STATE).stat().st_mtime
    process = fit_until_checkpoint(run, "--resume", str(run), after=saved)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    said = f"interrupted; continue with: ./assay train --resume {run}\n"
    assert process.returncode == 130 and errors.decode().endswith(said)
    assert main(["fit", "--resume", str(run)]) == 0
    start(recipe_file, "whole", *choice).run()
    assert_same(recipe_file.parent)


def test_run_is_resumed_with_its_data_and_version_alone(
    recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recipe_file.parent / "run"

    def refused(*arguments: str, message: str) -> None:
        assert main(["fit", *arguments, "--resume", str(run)]) == 2
        assert message in capsys.readouterr().err

    refused(str(recipe_file), message="give no recipe or --output")
    refused(message="holds no run")
    start(recipe_file, "run", "train.epochs=1").run()
    assert main(["fit", "--resume", str(run)]) == 0
    assert capsys.readouterr().out.endswith(f"already finished: {run}\n")
    (run / records.METRICS).unlink()
    labels = recipe_file.parent / "t10k-labels-idx1-ubyte.gz"
    content = labels.read_bytes()
    write_idx(labels, np.zeros(64, np.uint8))
    refused(message="not what this run was started with")
    labels.write_bytes(content)
    torch.save({"model": {}}, run / records.STATE)
    refused(message="can be exported, not resumed")
    (run / "recipe.yaml").write_text("a: [")
    refused(message="not a readable YAML file")
    (run / "recipe.yaml").write_text("- a")
    refused(message="must hold a mapping, got list")


def test_changes_since_the_commit_are_kept_for_each_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, run = tmp_path / "code", tmp_path / "run"
    code.mkdir()
    run.mkdir()

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        subprocess.run(["git", "-C", code, *identity, *arguments], check=True, capture_output=True)

    (code / "step.py").write_text("lr = 1\n")
    (code / "weights").write_bytes(bytes(range(256)))
    for arguments in (("init",), ("add", "."), ("commit", "-m", "Begin")):
        git(*arguments)
    (code / "notes").write_text("not tracked")
    monkeypatch.setattr(records, "_CODE", code)
    records.record_session(run, 0, {}, 1)
    assert not list(run.glob("*.patch"))
    for step, name in ((0, "changes.patch"), (8, "changes-8.patch")):
        changed = {"step.py": b"lr = %d # \xff\n" % step, "weights": bytes(range(step, 250))}
        for file, content in changed.items():
            (code / file).write_bytes(content)
        records.record_session(run, step, {}, 1)
        git("checkout", ".")
        git("apply", str(run / name))
        assert all((code / file).read_bytes() == content for file, content in changed.items())
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    records.record_session(run, 9, {}, 1)
    assert len(list(run.glob("*.patch"))) == 2
    commits = [each["commit"] for each in json.loads((run / records.RUN).read_text())["sessions"]]
    assert [len(commit) for commit in commits[:3]] == [40, 41, 41] and commits[3] == "unknown"

"""Two processes and one train the same model on the same batches."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.conftest import Start
from training import run as records
from training.distributed import Processes, process_group

ROOT = Path(__file__).parents[2]
RESUMED = """
import sys
from pathlib import Path
from training.trainer import Trainer
from training.distributed import process_group
from training.recipe_file import read_recipe
from training.step import Stepper

class Killed(Exception):
    pass

def call(self, step, batch, original=Stepper.__call__):
    if step == last:
        raise Killed
    return original(self, step, batch)

def train(processes, folder):
    try:
        Trainer(recipe, Path(folder), processes=processes).run()
    except Killed:
        pass

def threads():
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum("gloo" in name for name in names)

whole, killed, recipe, *options = sys.argv[1:]
recipe = read_recipe(Path(recipe), options)
Stepper.__call__ = call
with process_group() as processes:
    for last, folder in ((-1, whole), (13, killed), (-1, killed)):
        train(processes, folder)
        processes.wait()
    assert threads() or not Path("/proc/self/task").is_dir()
sys.exit(threads())  # a thread of the group that is left may abort the process at its exit
"""

SLOW = """
import sys
import time
from pathlib import Path
from training.__main__ import main
from training.step import Stepper

def call(self, step, batch, original=Stepper.__call__):
    loss = original(self, step, batch)
    Path(sys.argv[1]).touch()
    time.sleep(0.5)
    return loss

Stepper.__call__ = call
sys.exit(main(["fit", *sys.argv[2:]]))
"""


def losses(run: Path) -> list[float]:
    with (run / records.STEPS).open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def launch(*command: str | Path) -> subprocess.Popen[str]:
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, *map(str, command)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_train_as_one_and_resume_to_the_same_weights(
    recipe_file: Path, tmp_path: Path, start: Start
) -> None:
    options = ["data.mixup=0.8", "data.cutmix=1.0", "data.erase=0.25"]
    one, whole, killed = (tmp_path / name for name in ("one", "whole", "killed"))
    start(recipe_file, one, *options).run()
    (tmp_path / "resumed.py").write_text(RESUMED)
    command = [tmp_path / "resumed.py", whole, killed, recipe_file, *options, "train.accumulate=2"]
    with launch(*command) as process:
        _, errors = process.communicate(timeout=170)
    assert process.returncode == 0, errors[-8000:]
    assert len(losses(one)) == 1
    assert losses(whole) == pytest.approx(losses(one), rel=1e-4)
    weights = [load_file(run / records.LAST) for run in (one, whole)]
    assert all(torch.allclose(weights[0][key], weights[1][key], atol=2e-3) for key in weights[0])
    for name in (records.BEST, records.LAST):
        undisturbed, resumed = (load_file(run / name) for run in (whole, killed))
        assert all(torch.equal(undisturbed[key], resumed[key]) for key in undisturbed)
    sessions = json.loads((killed / records.RUN).read_text())["sessions"]
    assert [(each["step"], each["processes"]) for each in sessions] == [(0, 2), (8, 2)]


@pytest.mark.slow
def test_sigterm_to_torchrun_saves_at_the_end_of_the_step(
    recipe_file: Path, tmp_path: Path
) -> None:
    script, begun, run = tmp_path / "slow.py", tmp_path / "begun", tmp_path / "run"
    script.write_text(SLOW)
    options = ["train.epochs=20", "train.validate_steps=160", "data.workers=1"]
    with launch(script, begun, recipe_file, *options, "--output", run) as process:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert torch.load(run / records.STATE, weights_only=True)["step"] < 20, errors[-8000:]
    assert "continue with --resume" in errors


def test_alone_nothing_is_shared() -> None:
    with process_group() as processes:
        assert processes.size == 1 and processes.is_first
        assert processes.part(6) == slice(0, 6)
        assert processes.sum(torch.tensor(2.0)) == 2 and processes.max(3) == 3
        processes.wait()


def test_parts_of_a_batch_follow_each_other() -> None:
    assert [Processes(rank=rank, size=2).part(6) for rank in (0, 1)] == [slice(0, 3), slice(3, 6)]

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

from tests.training.conftest import start
from training import run as records
from training.distributed import Processes, process_group

ROOT = Path(__file__).parents[2]
RESUMED = """
import contextlib
import sys
from pathlib import Path
from training.trainer import Trainer
from training.distributed import process_group
from training.recipe_file import read_recipe
from training.step import Stepper

def call(self, step, batch, original=Stepper.__call__):
    if step == last:
        raise KeyboardInterrupt  # before it is asked for, so that nothing is saved
    return original(self, step, batch)

def threads():
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum("gloo" in name for name in names)

whole, killed, recipe, *options = sys.argv[1:]
recipe = read_recipe(Path(recipe), options)
Stepper.__call__ = call
with process_group() as processes:
    for last, folder in ((-1, whole), (13, killed), (-1, killed)):
        with contextlib.suppress(KeyboardInterrupt):
            Trainer(recipe, Path(folder), processes=processes).run()
        processes.wait()
    assert threads() or not Path("/proc/self/task").is_dir()
sys.exit(threads())  # a thread of the group that is left may abort the process at its exit
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


@pytest.mark.slow
def test_two_processes_train_as_one_and_resume_to_the_same_weights(recipe_file: Path) -> None:
    options = ["data.mixup=0.8", "data.cutmix=1.0", "data.erase=0.25"]
    start(recipe_file, "one", *options).run()
    one, whole, killed = (recipe_file.parent / name for name in ("one", "whole", "killed"))
    script = recipe_file.with_name("resumed.py")
    script.write_text(RESUMED)
    with launch(script, whole, killed, recipe_file, *options, "train.accumulate=2") as process:
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
def test_sigterm_to_torchrun_saves_at_the_end_of_the_step(recipe_file: Path) -> None:
    run = recipe_file.parent / "run"
    options = ["train.epochs=20000", "train.validate_steps=160000", "data.workers=1"]
    with launch("-m", "training", "fit", recipe_file, *options, "--output", run) as process:
        while not (run / records.STEPS).is_file():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert torch.load(run / records.STATE, weights_only=True)["step"] < 160_000, errors[-8000:]
    assert "continue with --resume" in errors


def test_alone_nothing_is_shared_and_parts_of_a_batch_follow_each_other() -> None:
    with process_group() as processes:
        assert processes.size == 1 and processes.is_first
        assert processes.part(6) == slice(0, 6)
        assert processes.sum(torch.tensor(2.0)) == 2 and processes.max(3) == 3
        processes.wait()
    assert [Processes(rank=rank, size=2).part(6) for rank in (0, 1)] == [slice(0, 3), slice(3, 6)]

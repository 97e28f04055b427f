"""Two processes and one train the same model on the same batches."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from training import run as records
from training.fit import Trainer
from training.processes import Processes, joined

Start = Callable[..., Trainer]
ROOT = Path(__file__).parents[2]
THREADS = """
import sys
from pathlib import Path
from torch import nn, ones
from torch.nn.parallel import DistributedDataParallel
from training.processes import joined

def step():
    DistributedDataParallel(nn.Linear(2, 2))(ones(1, 2)).sum().backward()

def gloo():
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum("gloo" in name for name in names)

with joined() as processes:
    step()
    assert gloo()
sys.exit(gloo())
"""

RESUMED = """
import sys
from pathlib import Path
from training.fit import Trainer
from training.processes import joined
from training.recipe_file import read_recipe
from training.stepping import Stepper

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

recipe = read_recipe(Path(sys.argv[1]))
Stepper.__call__ = call
with joined() as processes:
    for last, folder in ((-1, sys.argv[2]), (3, sys.argv[3]), (13, sys.argv[3]), (-1, sys.argv[3])):
        train(processes, folder)
        processes.wait()
"""

SLOW = """
import sys
import time
from pathlib import Path
from training.__main__ import main
from training.stepping import Stepper

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


def launch(*command: str) -> subprocess.Popen[str]:
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def torchrun(*command: str) -> None:
    with launch(*command) as process:
        _, errors = process.communicate(timeout=170)
    assert process.returncode == 0, errors[-8000:]


def test_two_processes_have_the_loss_curve_of_one(
    recipe_file: Path, tmp_path: Path, start: Start
) -> None:
    options = ["train.epochs=5", "data.mixup=0.8", "data.cutmix=1.0", "data.erase=0.25"]
    whole, shared = tmp_path / "whole", tmp_path / "shared"
    start(recipe_file, whole, *options).run()
    command = ["training", "fit", str(recipe_file), *options, "train.accumulate=2"]
    torchrun("-m", *command, "--output", str(shared))
    assert len(losses(whole)) == 2
    assert losses(shared) == pytest.approx(losses(whole), rel=1e-4)
    one, other = (load_file(run / records.LAST) for run in (whole, shared))
    assert all(torch.allclose(one[key], other[key], atol=2e-3) for key in one)


def test_two_killed_processes_resume_to_the_same_weights(recipe_file: Path, tmp_path: Path) -> None:
    script, runs = tmp_path / "resumed.py", [tmp_path / "whole", tmp_path / "killed"]
    script.write_text(RESUMED)
    torchrun(str(script), str(recipe_file), *map(str, runs))
    for name in (records.BEST, records.LAST):
        whole, resumed = (load_file(run / name) for run in runs)
        assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    sittings = json.loads((runs[1] / records.RUN).read_text())["sittings"]
    assert [(each["step"], each["processes"]) for each in sittings] == [(0, 2), (0, 2), (8, 2)]


def test_sigterm_to_torchrun_saves_at_the_end_of_the_step(
    recipe_file: Path, tmp_path: Path
) -> None:
    script, begun, run = tmp_path / "slow.py", tmp_path / "begun", tmp_path / "run"
    script.write_text(SLOW)
    options = ["train.epochs=20", "train.validate_steps=160", "data.workers=1"]
    command = [str(script), str(begun), str(recipe_file), *options, "--output", str(run)]
    with launch(*command) as process:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    state = records.load_state(run)
    assert state is not None and state["step"] < 20, errors[-8000:]
    assert "continue with --resume" in errors


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
def test_no_thread_of_the_group_is_left_to_abort_at_exit(tmp_path: Path) -> None:
    script = tmp_path / "threads.py"
    script.write_text(THREADS)
    torchrun(str(script))


def test_alone_nothing_is_shared() -> None:
    with joined() as processes:
        assert processes.size == 1 and processes.is_first
        assert processes.part(6) == slice(0, 6)
        assert processes.sum(torch.tensor(2.0)) == 2 and processes.max(3) == 3
        processes.wait()


def test_parts_of_a_batch_follow_each_other() -> None:
    assert [Processes(rank=rank, size=2).part(6) for rank in (0, 1)] == [slice(0, 3), slice(3, 6)]

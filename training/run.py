"""The run: the folder a recipe leaves behind."""

import csv
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import models
from core.environment import python_and_machine, versions
from core.files import replacing, write_whole
from core.yaml import write_yaml
from data.tokenizer import TextTokenizer
from export.run import BEST, METRICS, RECIPE
from models.checkpoints import load_weights
from runtimes.manifest import TOKENIZER
from training.recipe import Recipe
from training.recipe_file import read_recipe

RUN, HISTORY, STEPS = "run.json", "history.csv", "steps.csv"
STATE, LAST, TEACHER = "state.pt", "last.safetensors", "teacher.safetensors"
_CODE = Path(__file__).parent
_PACKAGES = ("torch", "numpy", "safetensors", "tokenizers")


def start_run(folder: Path, recipe: Recipe, tokenizer: TextTokenizer | None = None) -> None:
    """Make the folder of a run; write its resolved recipe and the tokenizer that it trained."""
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        with replacing(folder / TOKENIZER) as partial:
            tokenizer.save(partial)
    write_whole(folder / RECIPE, write_yaml(recipe.to_dict()))


def recorded_recipe(folder: Path) -> Recipe:
    """The resolved recipe of a run.

    Raises:
        ValueError: the folder holds no run, or a broken recipe.
    """
    if not (folder / RECIPE).is_file():
        raise ValueError(f"{folder} holds no run: {RECIPE} is missing")
    return read_recipe(folder / RECIPE)


def finished(folder: Path) -> dict[str, Any] | None:
    """The metrics of a run whose best weights were tested; None of any other folder."""
    path = folder / METRICS
    metrics = json.loads(path.read_text()) if path.is_file() else {}
    return metrics if "test_accuracy" in metrics else None


def record_session(folder: Path, step: int, inputs: dict[str, str], processes: int) -> None:
    """Note in `run.json` what the run depends on from a step on, at each start and resumption.

    Where tracked files of the code differ from its commit, the difference is kept beside it: as
    `changes.patch`, and as `changes-STEP.patch` of a session that resumes at a step. `inputs`
    describe the data, and the first weights where a file gave them.
    """
    changes = _git("diff", "--binary", "HEAD")
    if changes:
        patch = f"changes-{step}.patch" if step else "changes.patch"
        (folder / patch).write_bytes(changes)
    path = folder / RUN
    run = json.loads(path.read_text()) if path.is_file() else {}
    sessions = run.pop("sessions", [])
    sessions.append({"step": step, "processes": processes} | environment())
    write_whole(path, json.dumps(run | inputs | {"sessions": sessions}, indent=2) + "\n")


def write_metrics(
    folder: Path, metrics: dict[str, Any], history: Sequence[dict[str, float]]
) -> None:
    """Write the metrics of the run so far, and one row per validation."""
    write_whole(folder / METRICS, json.dumps(metrics, indent=2) + "\n")
    if not history:
        return
    with replacing(folder / HISTORY) as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, history[0])
        writer.writeheader()
        writer.writerows(history)


def environment() -> dict[str, str]:
    """What a run depends on beside its recipe: versions, processor and commit."""
    return {
        **python_and_machine(),
        **versions(_PACKAGES),
        "threads": str(torch.get_num_threads()),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "commit": _commit(),
    }


def _commit() -> str:
    """The commit of the code, with a `+` where files of it were changed since."""
    commit = _git("rev-parse", "HEAD").decode().strip()
    if not commit:
        return "unknown"
    return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> bytes:
    """What git says of the code; nothing where git or the repository is missing."""
    command = ["git", "-C", str(_CODE), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return b""


def trained_model(folder: Path, recipe: Recipe) -> nn.Module:
    """The model of a run with its best weights, in eval mode.

    Raises:
        ValueError: the weights are missing, broken, or not those of the recipe's model.
    """
    model = models.build(**recipe.model)
    load_weights(model, folder / BEST)
    return model.eval()

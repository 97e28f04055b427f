"""The run: the folder a recipe leaves behind."""

import csv
import hashlib
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from training.recipe import Recipe, read_recipe

RECIPE, METRICS, HISTORY, STATE = "recipe.yaml", "metrics.json", "history.csv", "state.pt"
BEST, LAST, TEACHER = "best.safetensors", "last.safetensors", "teacher.safetensors"


def check_unused(folder: Path) -> None:
    """Check that a run may begin in this folder.

    Raises:
        ValueError: the folder already holds a run.
    """
    if (folder / RECIPE).exists():
        raise ValueError(f"{folder} already holds a run; continue it with --resume {folder}")


def start_run(folder: Path, recipe: Recipe) -> None:
    """Make the folder of a run and write its resolved recipe.

    Raises:
        ValueError: the folder already holds a run.
    """
    check_unused(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / RECIPE, yaml.safe_dump(recipe.to_dict(), sort_keys=False))


def recorded_recipe(folder: Path) -> Recipe:
    """The resolved recipe of a run.

    Raises:
        ValueError: the folder holds no run, or a broken recipe.
    """
    if not (folder / RECIPE).is_file():
        raise ValueError(f"{folder} holds no run: {RECIPE} is missing")
    return read_recipe(folder / RECIPE)


def write_metrics(folder: Path, metrics: dict[str, Any], history: list[dict[str, float]]) -> None:
    """Write the metrics of the run so far and one row an epoch beside the checkpoints."""
    _write(folder / METRICS, json.dumps(metrics, indent=2) + "\n")
    partial = folder / f"{HISTORY}.partial"
    with partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, history[0])
        writer.writeheader()
        writer.writerows(history)
    partial.replace(folder / HISTORY)


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write what resuming needs beside the weights, replacing the file in one step."""
    partial = folder / f"{STATE}.partial"
    torch.save(state, partial)
    partial.replace(folder / STATE)


def load_state(folder: Path) -> dict[str, Any] | None:
    """Read what `save_state` wrote; None before the first checkpoint."""
    path = folder / STATE
    return torch.load(path, weights_only=True) if path.is_file() else None


def environment() -> dict[str, str]:
    """What a run depends on beside its recipe: versions, processor and commit."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "machine": platform.machine(),
        "commit": commit.stdout.strip() or "unknown",
    }


def digest(*arrays: np.ndarray) -> str:
    """The sha256 of arrays, so that a run says which data it saw."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(str((array.shape, array.dtype)).encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def _write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)

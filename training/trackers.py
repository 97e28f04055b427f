"""Programs that show the figures of runs: TensorBoard, MLflow, Weights & Biases.

Only TensorBoard belongs to the development environment; the packages `mlflow` and `wandb` are to be
installed by those who name them in `logs`. A resumed run continues the same record.
"""

import importlib
from pathlib import Path
from typing import Any, Protocol

from training.recipe import Recipe

_FOLDER, _MLFLOW_ID, _WANDB_ID = "tensorboard", "mlflow_run_id", "wandb_run_id"


class Tracker(Protocol):
    """Takes figures by step."""

    def write(self, step: int, figures: dict[str, float]) -> None:
        """Take the figures of a step."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


class TensorBoard:
    """Event files in the run's folder, for `tensorboard --logdir runs`.

    Args:
        recipe: of the run.
        folder: of the run.
        step: steps done so far; what a killed run wrote after it is hidden.
    """

    def __init__(self, recipe: Recipe, folder: Path, step: int) -> None:
        writer = _import("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer = writer(str(folder / _FOLDER), purge_step=step + 1)

    def write(self, step: int, figures: dict[str, float]) -> None:
        """Take the figures of a step."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class MLflow:
    """A run of MLflow, on the server that the variable MLFLOW_TRACKING_URI names.

    Args:
        recipe: of the run; its values become parameters.
        folder: of the run; it keeps MLflow's own identifier.
        step: steps done so far.
    """

    def __init__(self, recipe: Recipe, folder: Path, step: int) -> None:
        self._mlflow = _import("mlflow", "mlflow")
        path = folder / _MLFLOW_ID
        if path.is_file():
            self._mlflow.start_run(run_id=path.read_text())
            return
        run = self._mlflow.start_run(run_name=recipe.run_name)
        self._mlflow.log_params(_flat(recipe.to_dict()))
        path.write_text(run.info.run_id)

    def write(self, step: int, figures: dict[str, float]) -> None:
        """Take the figures of a step."""
        self._mlflow.log_metrics(figures, step=step)

    def close(self) -> None:
        """Close the log."""
        self._mlflow.end_run()


class WeightsAndBiases:
    """A run of Weights & Biases, in the project `assay`.

    Args:
        recipe: of the run.
        folder: of the run; it keeps wandb's own identifier and what wandb writes.
        step: steps done so far.
    """

    def __init__(self, recipe: Recipe, folder: Path, step: int) -> None:
        path = folder / _WANDB_ID
        self._run = _import("wandb", "wandb").init(
            project="assay",
            name=recipe.run_name,
            id=path.read_text() if path.is_file() else None,
            resume="allow",
            config=recipe.to_dict(),
            dir=str(folder),
        )
        path.write_text(self._run.id)

    def write(self, step: int, figures: dict[str, float]) -> None:
        """Take the figures of a step."""
        self._run.log(figures, step=step)

    def close(self) -> None:
        """Close the log."""
        self._run.finish()


_TRACKERS = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}


def open_trackers(recipe: Recipe, folder: Path, step: int) -> list[Tracker]:
    """Open what a recipe names in `logs`.

    Raises:
        ValueError: the package of one is not installed.
    """
    return [_TRACKERS[name](recipe, folder, step) for name in recipe.logs]


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"logs names {package}, which is not installed: {error}") from error


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = str(value)[:500]  # the most that a server of MLflow takes
    return flat

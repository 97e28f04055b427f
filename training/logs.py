"""Where the figures of a run go: `steps.csv`, and the programs that its recipe names in `logs`.

Of TensorBoard, MLflow and Weights & Biases only the first belongs to the development environment;
`mlflow` and `wandb` are to be installed by those who name them. A resumed run continues the same
record.
"""

import csv
import importlib
from pathlib import Path
from typing import Any

from training.recipe import Recipe, flat
from training.run import STEPS

_FOLDER, _MLFLOW_ID, _WANDB_ID = "tensorboard", "mlflow_run_id", "wandb_run_id"


class CsvLog:
    """One row a call in a csv file.

    Args:
        path: a file of a resumed run loses the rows after `step` that it was killed with.
        step: steps done so far.
    """

    def __init__(self, path: Path, step: int) -> None:
        rows: list[dict[str, str]] = []
        if path.is_file():
            with path.open(newline="") as file:
                rows = [row for row in csv.DictReader(file) if int(row["step"]) <= step]
        self._file = path.open("w", newline="")
        self._writer: csv.DictWriter[str] | None = None
        for row in rows:
            self._row(row)

    def write(self, step: int, figures: dict[str, float]) -> None:
        """Add a row; the figures have the same names in every call."""
        self._row({"step": step} | figures)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _row(self, row: dict[str, Any]) -> None:
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, list(row))
            self._writer.writeheader()
        self._writer.writerow(row)


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
        values = flat(recipe.to_dict()).items()
        # 500 letters are the most that a server of MLflow takes.
        self._mlflow.log_params({key: str(value)[:500] for key, value in values})
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


class Logs:
    """All logs of a run as one.

    Args:
        recipe: of the run; its `logs` name trackers.
        folder: of the run.
        step: steps done so far.
        writes: False on a process that writes nothing.

    Raises:
        ValueError: the package of a tracker is not installed.
    """

    def __init__(self, recipe: Recipe, folder: Path, step: int, *, writes: bool) -> None:
        names = recipe.logs if writes else ()
        self._trackers = [_TRACKERS[name](recipe, folder, step) for name in names]
        self._steps = [CsvLog(folder / STEPS, step)] if writes else []

    def training(self, step: int, figures: dict[str, float]) -> None:
        """Take what was measured over the last steps."""
        for log in self._steps:
            log.write(step, figures)
        self._track(step, {f"train/{key}": value for key, value in figures.items()})

    def validation(self, step: int, figures: dict[str, float]) -> None:
        """Take what a validation found; `history.csv` holds it anyway."""
        named = {f"valid/{key.removeprefix('valid_')}": value for key, value in figures.items()}
        self._track(step, named)

    def close(self) -> None:
        """Write what is left."""
        for log in (*self._steps, *self._trackers):
            log.close()

    def _track(self, step: int, figures: dict[str, float]) -> None:
        for tracker in self._trackers:
            tracker.write(step, figures)


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"logs names {package}, which is not installed: {error}") from error

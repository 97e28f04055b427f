"""Where the figures of a run go: `steps.csv`, and the programs that its recipe names in `logs`.

Of TensorBoard, MLflow and Weights & Biases only the first belongs to the development environment;
`mlflow` and `wandb` are to be installed by those who name them. A resumed run continues the same
record.
"""

import csv
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from training.recipe import Recipe, flat
from training.run import STEPS

_FOLDER, _MLFLOW_ID, _WANDB_ID = "tensorboard", "mlflow_run_id", "wandb_run_id"
Write = Callable[[int, dict[str, float]], Any]
"""Takes the figures of a step."""
Log = Callable[[Recipe, Path, int], AbstractContextManager[Write]]
"""Begins or continues the record of a run in its folder, after so many steps."""


@contextmanager
def csv_log(path: Path, step: int) -> Iterator[Write]:
    """Write one row a call, with the same names in each, into a csv file.

    Args:
        path: a file of a resumed run loses the rows after `step` that it was killed with.
        step: steps done so far.
    """
    kept: list[list[str]] = []
    if path.is_file():
        with path.open(newline="") as file:
            kept = [row for row in csv.reader(file) if row[0] == "step" or int(row[0]) <= step]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows(kept)

        def write(step: int, figures: dict[str, float]) -> None:
            """See `Write`; the first row has the names above it."""
            if not file.tell():
                writer.writerow(["step", *figures])
            writer.writerow([step, *figures.values()])
            file.flush()

        yield write


@contextmanager
def _tensorboard(recipe: Recipe, folder: Path, step: int) -> Iterator[Write]:
    """Event files for `tensorboard --logdir runs`; what a killed run wrote later is hidden."""
    summary_writer = _import("torch.utils.tensorboard", "tensorboard").SummaryWriter
    with summary_writer(str(folder / _FOLDER), purge_step=step + 1) as writer:

        def write(step: int, figures: dict[str, float]) -> None:
            """See `Write`."""
            for name, value in figures.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        yield write


@contextmanager
def _mlflow(recipe: Recipe, folder: Path, step: int) -> Iterator[Write]:
    """A run of MLflow, on the server that the variable MLFLOW_TRACKING_URI names."""
    mlflow, path = _import("mlflow", "mlflow"), folder / _MLFLOW_ID
    if path.is_file():
        mlflow.start_run(run_id=path.read_text())
    else:
        run = mlflow.start_run(run_name=recipe.run_name)
        values = flat(recipe.to_dict()).items()
        # 500 letters are the most that a server of MLflow takes.
        mlflow.log_params({key: str(value)[:500] for key, value in values})
        path.write_text(run.info.run_id)
    try:
        yield lambda step, figures: mlflow.log_metrics(figures, step=step)
    finally:
        mlflow.end_run()


@contextmanager
def _wandb(recipe: Recipe, folder: Path, step: int) -> Iterator[Write]:
    """A run of Weights & Biases, in the project `assay`; the folder keeps what it writes."""
    path = folder / _WANDB_ID
    run = _import("wandb", "wandb").init(
        project="assay",
        name=recipe.run_name,
        id=path.read_text() if path.is_file() else None,
        resume="allow",
        config=recipe.to_dict(),
        dir=str(folder),
    )
    path.write_text(run.id)
    try:
        yield lambda step, figures: run.log(figures, step=step)
    finally:
        run.finish()


_TRACKERS: dict[str, Log] = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}


class Logs(ExitStack):
    """All logs of a run as one; they are closed with it.

    Args:
        recipe: of the run; its `logs` name trackers.
        folder: of the run.
        step: steps done so far.
        writes: False on a process that writes nothing.

    Raises:
        ValueError: the package of a tracker is not installed.
    """

    def __init__(self, recipe: Recipe, folder: Path, step: int, *, writes: bool) -> None:
        super().__init__()
        logs = [_TRACKERS[name](recipe, folder, step) for name in recipe.logs if writes]
        self._trackers = [self.enter_context(log) for log in logs]
        self._steps = [self.enter_context(csv_log(folder / STEPS, step))] if writes else []

    def training(self, step: int, figures: dict[str, float]) -> None:
        """Take what was measured over the last steps."""
        for write in self._steps:
            write(step, figures)
        self._track(step, {f"train/{key}": value for key, value in figures.items()})

    def validation(self, step: int, figures: dict[str, float]) -> None:
        """Take what a validation found; `history.csv` holds it anyway."""
        named = {f"valid/{key.removeprefix('valid_')}": value for key, value in figures.items()}
        self._track(step, named)

    def _track(self, step: int, figures: dict[str, float]) -> None:
        for write in self._trackers:
            write(step, figures)


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"logs names {package}, which is not installed: {error}") from error

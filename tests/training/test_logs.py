import csv
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.training.conftest import start
from training.logs import csv_log


def test_rows_that_a_killed_run_wrote_too_many_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    for begun, steps in ((0, (20, 40, 60)), (40, (60, 80))):
        with csv_log(path, begun) as write:
            for step in steps:
                write(step, {"loss": begun + 0.5})
    with path.open(newline="") as file:
        rows = [(row["step"], row["loss"]) for row in csv.DictReader(file)]
    assert rows == [("20", "0.5"), ("40", "0.5"), ("60", "40.5"), ("80", "40.5")]


def test_tensorboard_shows_training_and_validation(recipe_file: Path) -> None:
    trainer = start(recipe_file, "run", "train.epochs=5", "logs=[tensorboard]")
    trainer.run()
    events = EventAccumulator(str(trainer.folder / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [20, 40]
    assert [event.step for event in events.Scalars("valid/accuracy")] == [8, 16, 24, 32, 40]


def test_other_trackers_take_the_same_figures_and_go_on_after_a_break(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, Any]] = []

    def note(name: str, answer: Any = None) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            calls.append((name, options | {"arguments": arguments}))
            return answer

        return called

    begun = types.SimpleNamespace(info=types.SimpleNamespace(run_id="seven"))
    names = ("log_params", "log_metrics", "end_run")
    mlflow = types.SimpleNamespace(start_run=note("start", begun), **{n: note(n) for n in names})
    run = types.SimpleNamespace(id="eight", log=note("log"), finish=note("finish"))
    wandb = types.SimpleNamespace(init=note("init", run))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    trainer = start(recipe_file, "run", "logs=[mlflow, wandb]", "train.epochs=3")
    trainer.run()
    steps = [options["step"] for name, options in calls if name in ("log_metrics", "log")]
    assert steps == [8, 8, 16, 16, 20, 20, 24, 24]
    assert {"log_params", "end_run", "init", "finish"} <= {name for name, _ in calls}
    trainer.state.step = 23
    trainer.run()
    assert [options.get("run_id") for name, options in calls if name == "start"] == [None, "seven"]
    assert [options["id"] for name, options in calls if name == "init"] == [None, "eight"]


def test_tracker_that_is_not_installed_is_named(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="logs names wandb, which is not installed"):
        start(recipe_file, "run", "logs=[wandb]").run()

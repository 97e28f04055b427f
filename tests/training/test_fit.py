import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from training import records
from training.__main__ import main
from training.fit import Trainer, learning_rate
from training.recipe import read_recipe


def start(recipe_file: Path, folder: Path, *overrides: str) -> Trainer:
    recipe = read_recipe(recipe_file, list(overrides))
    records.start_run(folder, recipe)
    return Trainer(recipe, folder)


def test_run_learns_and_records_what_came_out(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["fit", str(recipe_file), "train.epochs=4", "--output", str(run)]) == 0
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["test_accuracy"] > 0.9
    assert metrics["train_images"] == 128 and metrics["valid_images"] == 32
    assert len(metrics["data_digest"]) == 64 and metrics["environment"]["torch"]
    assert json.loads(capsys.readouterr().out.partition("run:")[0]) == metrics
    rows = list(csv.DictReader((run / "history.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["1.0", "2.0", "3.0", "4.0"]
    assert records.recorded_recipe(run).train.epochs == 4


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["adversarial={eps: 8/255, alpha: 4/255, steps: 1}"],
        ["distillation={teacher_epochs: 2}"],
    ],
    ids=["plain", "adversarial", "distillation"],
)
def test_killed_run_resumes_to_the_same_weights(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str]
) -> None:
    whole = start(recipe_file, tmp_path / "whole", *overrides)
    whole.run(progress=False)
    killed = start(recipe_file, tmp_path / "killed", *overrides)
    step, steps = killed._step, []

    def step_until_killed(*batch: Any) -> float:
        steps.append(1)
        if len(steps) == 12:
            raise KeyboardInterrupt
        return step(*batch)

    monkeypatch.setattr(killed, "_step", step_until_killed)
    with pytest.raises(KeyboardInterrupt):
        killed.run(progress=False)
    assert main(["fit", "--resume", str(tmp_path / "killed")]) == 0
    for name in (records.BEST, records.LAST):
        one, other = (load_file(tmp_path / run / name) for run in ("whole", "killed"))
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_resume_with_other_data_is_refused(recipe_file: Path, tmp_path: Path) -> None:
    start(recipe_file, tmp_path / "run", "train.epochs=1").run(progress=False)
    labels = recipe_file.parent / "t10k-labels-idx1-ubyte"
    content = labels.read_bytes()
    labels.write_bytes(content[:-1] + bytes([1 - content[-1]]))
    with pytest.raises(ValueError, match="not what this run was started with"):
        Trainer(records.recorded_recipe(tmp_path / "run"), tmp_path / "run")


def test_training_stops_when_validation_gets_no_better(recipe_file: Path, tmp_path: Path) -> None:
    trainer = start(recipe_file, tmp_path / "run", "train.epochs=50", "train.patience=2")
    trainer.run(progress=False)
    assert trainer.epoch < 50 and trainer.epoch - trainer.best["epoch"] == 2


def test_adversarial_recipe_records_accuracy_under_attack(
    recipe_file: Path, tmp_path: Path
) -> None:
    attack = "adversarial={eps: 8/255, alpha: 4/255, steps: 2}"
    metrics = start(recipe_file, tmp_path / "run", attack, "train.epochs=2").run(progress=False)
    assert metrics["test_attacked_accuracy"] <= metrics["test_accuracy"]
    assert records.recorded_recipe(tmp_path / "run").adversarial is not None


def test_run_may_start_from_given_weights(recipe_file: Path, tmp_path: Path) -> None:
    trainer = start(recipe_file, tmp_path / "first", "train.epochs=1")
    trainer.run(progress=False)
    best = tmp_path / "first" / records.BEST
    second = start(recipe_file, tmp_path / "second", f"init={best}")
    assert all(
        torch.equal(value, second.model.state_dict()[key]) for key, value in load_file(best).items()
    )
    with pytest.raises(ValueError, match="nothing is not a readable safetensors file"):
        start(recipe_file, tmp_path / "third", "init=nothing")


def test_learning_rate_warms_up_and_decays_to_zero(recipe_file: Path) -> None:
    recipe = read_recipe(recipe_file, ["train.epochs=10", "train.warmup_epochs=2", "train.lr=1"])
    rates = [learning_rate(recipe, epoch) for epoch in (0, 1, 2, 6, 10)]
    assert rates[0] < rates[1] < rates[2] == 1 and rates[3] == pytest.approx(0.5)
    assert rates[4] == pytest.approx(0)


def test_learning_rate_starts_again_at_a_restart(recipe_file: Path) -> None:
    overrides = ["train.epochs=10", "train.restarts=[6]", "train.restart_decay=0.5", "train.lr=1"]
    recipe = read_recipe(recipe_file, [*overrides, "train.warmup_epochs=0"])
    rates = [learning_rate(recipe, epoch) for epoch in (0, 3, 5.999, 6, 8, 9.999)]
    assert rates == pytest.approx([1, 0.5, 0, 0.5, 0.25, 0], abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.restarts=[3]"], "train.restarts must ascend between 0 and epochs, got (3,)"),
        (["distillation={teacher_epochs: 1, weight: 2}"], "distillation.weight must lie in (0, 1]"),
        (["train.epoch=1"], "unknown key train.epoch; did you mean train.epochs?"),
        (["train.epochs=0"], "train.epochs must be at least 1, got 0"),
        (["model.dept=1"], "'dept' is no config field"),
        (["labels=[one]"], "labels must name every class of the model"),
        (["adversarial={eps: 0, alpha: 1, steps: 1}"], "adversarial.eps must lie in (0, 1]"),
        (["data.source=nowhere"], "nowhere is no file or folder"),
        (["train.batch_size=500"], "train.batch_size must be at most the 128 training images"),
        (["data.valid=160"], "valid must be from 1 to 159, got 160"),
        (["model.depth=deep"], "model holds a value of a wrong type"),
        (["train.epochs=["], "the value of train.epochs must be YAML, got '['"),
        (["epochs"], "an override must look like key=value, got 'epochs'"),
    ],
)
def test_bad_recipe_is_an_error_before_training(
    recipe_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    run = ["--output", str(tmp_path / "run")]
    assert main(["fit", str(recipe_file), *arguments, *run]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_resume_takes_no_recipe(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", str(recipe_file), "--resume", str(tmp_path)]) == 2
    assert "give no recipe or --output" in capsys.readouterr().err


def test_second_run_in_a_folder_is_refused(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(recipe_file, tmp_path / "run")
    assert main(["fit", str(recipe_file), "--output", str(tmp_path / "run")]) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_broken_recorded_recipe_or_unusable_folder_is_an_error(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    for content in ("a: [", "- a"):
        (tmp_path / "run" / "recipe.yaml").write_text(content)
        assert main(["fit", "--resume", str(tmp_path / "run")]) == 2
    assert "recipe.yaml must hold a mapping, got list" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["fit", str(recipe_file), "--output", str(tmp_path / "file" / "run")]) == 2


def test_shipped_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("fashion-dot ", "fashion-elliptical ", "-adv "))

from pathlib import Path

import pytest

from tests.training.conftest import start
from training import run as records
from training.__main__ import main
from training.plan import Pace, Planned, ends, expand, plan
from training.trainer import Trainer


def test_the_rest_of_a_run_is_its_steps_validations_and_test() -> None:
    pace = Pace(steps=25, validate_steps=10, step=2.0, validation=30.0, test=100.0, teacher=500.0)
    assert pace.rest(0) == 500 + 25 * 2 + 3 * 30 + 100
    assert pace.rest(10) == 15 * 2 + 2 * 30 + 100
    assert pace.rest(25) == 30 + 100  # saved before the last validation was


def test_runs_end_when_those_before_them_leave_a_slot() -> None:
    paces = (
        Pace(steps=n, validate_steps=n, step=1, validation=0, test=0, teacher=0) for n in (5, 2, 4)
    )
    runs = [Planned(folder=Path(), done=0, pace=pace, differs=False) for pace in paces]
    assert [end for _, end in ends(runs, 1)] == [5, 7, 11]
    assert [end for _, end in ends(runs, 2)] == [5, 2, 6]


def test_variants_and_seeds_are_named_together_or_all_are_meant(text_recipe: Path) -> None:
    def names(*overrides: str) -> list[str]:
        return [recipe.run_name for recipe in expand([text_recipe], overrides)]

    assert names() == ["words-transject", "words-transformer"]
    assert names("size=small", "variant=transformer", "seed=0,2") == [
        "words-transformer-small",
        "words-transformer-small-seed2",
    ]


def test_plan_tells_how_far_runs_are_and_begins_none(
    recipe_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe_file.parent)
    one_epoch = "train.epochs=1"
    finished, begun, other = (
        start(recipe_file, f"runs/{name}", *words)
        for name, words in (
            ("tiny", [one_epoch]),
            ("tiny-seed1", [one_epoch, "seed=1"]),
            ("tiny-seed2", ["seed=2"]),
        )
    )
    for trainer in (finished, begun, other):
        records.start_run(trainer.folder, trainer.recipe)
    records.write_metrics(finished.folder, {"test_accuracy": 1.0}, [])
    begun.state.step = 5
    begun.state.save(begun.folder)
    before = sorted(recipe_file.parent.rglob("*"))
    assert main(["plan", str(recipe_file), one_epoch, "seed=0,1,2,3", "--steps", "1"]) == 0
    head, *rows, total = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "state", "steps", "s/step", "hours", "left", "to", "its", "end"]
    states = ["finished", "at step 5", "another recipe's", "new"]
    names = ["tiny", "tiny-seed1", "tiny-seed2", "tiny-seed3"]
    for row, name, state in zip(rows, names, states, strict=True):
        assert row.split("  ")[0] == name and f" {state} " in row
    assert "hours for 4 runs, one after another" in total
    assert main(["plan", str(recipe_file), one_epoch, "--minutes", "0.001", "--at-once", "2"]) == 0
    assert capsys.readouterr().out.endswith("1 of them end within 0.001 minutes\n"), "finished"
    assert sorted(recipe_file.parent.rglob("*")) == before
    for words, message in (
        (["seed=1"], "name a recipe file"),
        ([str(recipe_file), "--steps", "0"], "--steps must be at least 1, got 0"),
        ([str(recipe_file.with_name("recip.yaml"))], "recipe.yaml'?"),
    ):
        assert main(["plan", *words]) == 2
        assert message in capsys.readouterr().err


def test_runs_that_differ_in_their_seed_are_measured_once_with_their_teacher(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed = []
    rehearse = Trainer.rehearse
    monkeypatch.setattr(
        Trainer, "rehearse", lambda self, steps: rehearsed.append(steps) or rehearse(self, steps)
    )
    teacher = "distillation={teacher_epochs: 2}"
    recipes = expand([recipe_file], ["seed=0,1", teacher])
    first, second = plan(recipes, recipe_file.parent / "runs", steps=2)
    assert rehearsed == [3] and first.pace == second.pace
    assert first.pace is not None and first.pace.teacher > 0
    assert (first.pace.steps, first.pace.validate_steps) == (24, 8)

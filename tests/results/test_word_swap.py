import json
from collections.abc import Callable
from pathlib import Path

import pytest

from results.__main__ import main
from results.word_swap import evaluate_swapped
from training.trainer import Trainer

Start = Callable[..., Trainer]


def test_words_that_tell_the_label_are_missed(
    text_recipe: Path, tmp_path: Path, start: Start
) -> None:
    metrics = start(text_recipe, tmp_path / "run", "variant=transformer").run()
    none, all_ = (evaluate_swapped(tmp_path / "run", rate=rate, seed=0) for rate in (0.0, 1.0))
    assert none["clean"]["top1"] == metrics["test_accuracy"] > 0.9
    assert none["swapped"] == none["robust"] == none["clean"] and none["p_value"] == 1
    assert all_["swapped"]["top1"] < 0.8 and all_["robust"]["top1"] <= all_["swapped"]["top1"]
    low, high = all_["swapped"]["ci"]
    assert 0 <= low < all_["swapped"]["top1"] < high <= 1 and all_["samples"] == 32


def test_command_records_and_writes_the_page(
    text_recipe: Path, tmp_path: Path, start: Start
) -> None:
    folder, output = tmp_path / "words", tmp_path / "docs" / "results.md"
    start(text_recipe, folder, "variant=transject", "size=small").run()
    options = ["--rate", "0.2", "--seed", "3", "--limit", "20", "--output", str(output)]
    assert main(["word-swap", str(folder), *options]) == 0
    record = json.loads((output.parent / "results" / "words-word-swap.json").read_text())
    assert (record["rate"], record["seed"], record["samples"]) == (0.2, 3, 20)
    assert "### Word Swap" in output.read_text()
    assert "| words | 20 % | 3 | 20 |" in output.read_text()


def test_images_have_no_words(
    recipe_file: Path, tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    start(recipe_file, tmp_path / "run", "train.epochs=1").run()
    assert main(["word-swap", str(tmp_path / "run")]) == 2
    assert "run must be a run on texts" in capsys.readouterr().err

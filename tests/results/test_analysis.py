import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from data.images import ImageSpec
from data.sources import load_inputs, open_images
from models.analysis.diagnostics import diagnose
from results.__main__ import main
from results.analysis import BINS, analyze, evaluate_swapped
from tests.training.conftest import Start
from training import run as records
from training.run import trained_model
from training.task import some


def test_figures_are_those_of_the_diagnostics(
    recipe_file: Path, tmp_path: Path, start: Start
) -> None:
    trainer = start(recipe_file, tmp_path / "run", "train.epochs=1")
    trainer.run()
    found = analyze(tmp_path / "run", count=5)
    chosen = some(64, 5)
    images = open_images(tmp_path, split="test", label_names=["dark", "light"]).take(chosen)
    inputs = load_inputs(images, ImageSpec(channels=1, height=8, width=8))
    model = trained_model(tmp_path / "run", trainer.recipe)
    expected = diagnose(model, torch.from_numpy(inputs))
    assert found["samples"] == 5 and found["expert_weights"] is None and found["bounds"] is None
    assert found["figures"].keys() == {
        "activation_factor", "total_factor", "entropy", "cosine_similarity", "head_redundancy",
    }  # fmt: skip
    for name, figure in found["figures"].items():
        values = getattr(expected, name).double().numpy()
        assert figure["mean"] == pytest.approx(values.mean(0).tolist(), rel=1e-3)
        assert figure["low"] == pytest.approx(np.quantile(values, 0.05, 0).tolist(), rel=1e-3)
        assert figure["high"] == pytest.approx(np.quantile(values, 0.95, 0).tolist(), rel=1e-3)
    factor, entropy = (expected.activation_factor.flatten(), expected.entropy.flatten())
    expected_r = np.corrcoef(factor.numpy(), entropy.numpy())[0, 1]
    assert found["correlation"] == pytest.approx(expected_r, rel=1e-2)


def test_transject_stays_within_its_bounds_and_shares_its_experts(
    text_recipe: Path, tmp_path: Path, start: Start
) -> None:
    start(text_recipe, tmp_path / "run", "variant=transject").run()
    found = analyze(tmp_path / "run")
    bounds, factor = found["bounds"], found["figures"]["total_factor"]
    assert found["samples"] == 32 and len(bounds["low"]) == 2
    assert bounds["high"][-1] < math.e**2
    for low, value, high in zip(bounds["low"], factor["mean"], bounds["high"], strict=True):
        assert low <= value <= high
    weights = found["expert_weights"]
    assert [len(layer) for layer in weights["histogram"]] == [BINS, BINS]
    for layer in (*weights["mean"], *weights["histogram"]):
        assert sum(layer) == pytest.approx(1, abs=1e-3)
    assert "head_redundancy" not in found["figures"] and "expert_entropy" in found["figures"]


def test_command_records_draws_and_tells_the_same_again(
    text_recipe: Path, tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = []
    for variant in ("transject", "transformer"):
        folder = tmp_path / f"words-{variant}"
        start(text_recipe, folder, f"variant={variant}", "size=small").run()
        folders.append(str(folder))
    output = tmp_path / "docs" / "results.md"
    written = []
    for _ in range(2):
        assert main(["analyze", *folders, "--limit", "6", "--output", str(output)]) == 0
        written.append({path: path.read_text() for path in output.parent.rglob("*.*")})
    assert written[0] == written[1]
    record = json.loads((output.parent / "results" / "words-transject-analysis.json").read_text())
    assert record["kind"] == "analysis" and record["samples"] == 6 and len(record["weights"]) == 64
    text = output.read_text()
    assert "![What the models do inside](images/inside-imdb.svg)" in text
    assert "| words-transformer | 6 |" in text and "| words-transject | 6 |" in text
    assert str(tmp_path) not in "".join(written[0].values())
    assert main(["analyze", folders[0], "--limit", "0", "--output", str(output)]) == 2
    assert "--limit must be at least 1, got 0" in capsys.readouterr().err


def test_some_samples_are_always_the_same_ones() -> None:
    assert some(10, None).tolist() == some(10, 10).tolist() == list(range(10))
    chosen = some(1000, 20)
    assert len(set(chosen)) == 20 and sorted(chosen) == chosen.tolist()
    assert np.array_equal(chosen, some(1000, 20))


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


def test_runs_that_cannot_be_looked_into_are_refused(
    recipe_file: Path, tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    start(recipe_file, tmp_path / "run", "train.epochs=1").run()
    assert main(["word-swap", str(tmp_path / "run")]) == 2
    assert "run must be a run on texts" in capsys.readouterr().err
    (tmp_path / "run" / records.BEST).unlink()
    with pytest.raises(ValueError, match="best.safetensors"):
        analyze(tmp_path / "run")
    with pytest.raises(ValueError, match="holds no run"):
        analyze(tmp_path / "nothing")

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
from results.inside_page import picture
from tests.training.conftest import start
from training import run as records
from training.run import trained_model
from training.splits import some


def test_figures_are_those_of_the_diagnostics(
    recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = start(recipe_file, "run", "train.epochs=1")
    trainer.run()
    found = analyze(trainer.folder, count=5)
    chosen = some(64, 5)
    assert len(set(chosen)) == 5 and sorted(chosen) == chosen.tolist()
    images = open_images(recipe_file.parent, split="test", label_names=["dark", "light"])
    inputs = load_inputs(images.take(chosen), ImageSpec(channels=1, height=8, width=8))
    model = trained_model(trainer.folder, trainer.recipe)
    expected = diagnose(model, torch.from_numpy(inputs))
    assert found["samples"] == 5 and found["expert_weights"] is None and found["bounds"] is None
    assert found["figures"].keys() == {
        "activation_factor", "total_factor", "entropy", "cosine_similarity", "head_redundancy",
        "head_entropy", "key_perturbation",
    }  # fmt: skip
    first, second = expected.key_perturbations
    keys = found["figures"].pop("key_perturbation")["mean"]
    assert first is keys[0] is None and second is not None
    assert keys[1] == pytest.approx(float(second.mean()), rel=1e-3)
    for name, figure in found["figures"].items():
        values = getattr(expected, name).double().numpy()
        assert figure["mean"] == pytest.approx(values.mean(0).tolist(), rel=1e-3)
        assert figure["low"] == pytest.approx(np.quantile(values, 0.05, 0).tolist(), rel=1e-3)
        assert figure["high"] == pytest.approx(np.quantile(values, 0.95, 0).tolist(), rel=1e-3)
    both = [values.flatten().numpy() for values in (expected.activation_factor, expected.entropy)]
    expected_r = np.corrcoef(both[0], both[1])[0, 1]
    assert found["correlation"] == pytest.approx(expected_r, rel=1e-2)
    assert main(["word-swap", str(trainer.folder)]) == 2
    assert "run must be a run on texts" in capsys.readouterr().err
    (trainer.folder / records.BEST).unlink()
    with pytest.raises(ValueError, match="best.safetensors"):
        analyze(trainer.folder)


def test_transject_stays_within_its_bounds_and_shares_its_experts(text_recipe: Path) -> None:
    trainer = start(text_recipe, "run", "variant=transject")
    trainer.run()
    found = analyze(trainer.folder)
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


def test_loads_of_experts_are_drawn_where_there_are_mixtures(language_recipe: Path) -> None:
    found = []
    for kind in ("switch", "glam", "null"):
        chosen = [f"model.experts={kind}", "model.depth=3"]
        chosen += [] if kind == "null" else ["model.num_experts=3"]
        trainer = start(language_recipe, kind, *chosen, "train.steps=2")
        trainer.run()
        found.append({"run": kind, **analyze(trainer.folder, count=3)})
    switch, glam, dense = found
    assert [layer is None for layer in glam["expert_load"]] == [True, False, True]
    for layer in (*switch["expert_load"], glam["expert_load"][1]):
        assert len(layer) == 3 and sum(layer) == pytest.approx(1, abs=1e-3)
    for name in ("routing_entropy", "dropped"):
        assert [value is None for value in glam["figures"][name]["mean"]] == [True, False, True]
        assert name not in dense["figures"]
    assert dense["expert_load"] is None and switch["isomap"] is None
    drawn = picture(found)
    assert "mean load of each expert" in drawn and "share of choices without room" in drawn
    assert "mean load" not in picture([dense])


def test_commands_record_draw_and_tell_the_same_again(
    text_recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = []
    for variant in ("transject", "transformer"):
        trainer = start(text_recipe, f"words-{variant}", f"variant={variant}", "size=small")
        trainer.run()
        folders.append(str(trainer.folder))
    docs = text_recipe.parent / "docs"
    output = ["--output", str(docs / "results.md")]
    written = []
    for _ in range(2):
        assert main(["analyze", *folders, "--limit", "6", *output]) == 0
        written.append({path: path.read_text() for path in docs.rglob("*.*")})
    assert written[0] == written[1]
    assert str(text_recipe.parent) not in "".join(written[0].values())
    record = json.loads((docs / "results" / "words-transject-analysis.json").read_text())
    assert record["kind"] == "analysis" and record["samples"] == 6 and len(record["weights"]) == 64
    places = [record["isomap"][name] for name in ("x", "y", "labels")]
    assert {len(each) for each in places} == {len(places[2])} and set(places[2]) == {0, 1}
    asked = ["--rate", "0.2", "--seed", "3", "--limit", "20"]
    assert main(["word-swap", folders[0], *asked, *output]) == 0
    record = json.loads((docs / "results" / "words-transject-word-swap.json").read_text())
    assert (record["rate"], record["seed"], record["samples"]) == (0.2, 3, 20)
    text = (docs / "results.md").read_text()
    assert "![What the models do inside](images/inside-imdb.svg)" in text
    assert "![Tokens of the last layer](images/isomap-imdb.svg)" in text
    dots = (docs / "images" / "isomap-imdb.svg").read_text().count('r="2.5"')
    assert dots == 2 * len(places[2])
    assert "### Word Swap" in text and "| words-transject | 20 % | 3 | 20 |" in text
    assert "| words-transformer | 6 |" in text and "| words-transject | 6 |" in text
    assert main(["analyze", folders[0], "--limit", "0", *output]) == 2
    assert "--limit must be at least 1, got 0" in capsys.readouterr().err


def test_words_that_tell_the_label_are_missed(text_recipe: Path) -> None:
    trainer = start(text_recipe, "run", "variant=transformer")
    metrics = trainer.run()
    none, all_ = (evaluate_swapped(trainer.folder, rate=rate, seed=0) for rate in (0.0, 1.0))
    assert none["clean"]["top1"] == metrics["test_accuracy"] > 0.9
    assert none["swapped"] == none["robust"] == none["clean"] and none["p_value"] == 1
    assert all_["swapped"]["top1"] < 0.8 and all_["robust"]["top1"] <= all_["swapped"]["top1"]
    low, high = all_["swapped"]["ci"]
    assert 0 <= low < all_["swapped"]["top1"] < high <= 1 and all_["samples"] == 32


def test_swapped_words_surprise_a_language_model(
    language_recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = start(language_recipe, "run")
    trainer.run()
    none = evaluate_swapped(trainer.folder, rate=0.0, seed=0)
    assert none["samples"] == 16 and none["ratio"] == {"value": 1.0, "ci": (1.0, 1.0)}
    page = language_recipe.parent / "docs" / "results.md"
    asked = ["--rate", "0.5", "--limit", "9", "--output", str(page)]
    assert main(["word-swap", str(trainer.folder), *asked]) == 0
    record = json.loads((page.parent / "results" / "run-word-swap.json").read_text())
    low, high = record["ratio"]["ci"]
    assert 1 < low < record["ratio"]["value"] < high
    ratio = record["swapped"]["value"] / record["clean"]["value"]
    assert record["ratio"]["value"] == pytest.approx(ratio)
    assert "| run | 50 % | 0 | 9 |" in page.read_text()

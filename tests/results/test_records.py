import json
from pathlib import Path
from typing import Any

import pytest

import models
from core.stats import wilson
from models.checkpoints import load_weights
from results.__main__ import main
from results.page import page, pictures
from results.records import OF_RUN, PAPERS, collect, read_records
from results.side_by_side import section
from robustness.report.schema import FILE as REPORT
from tests.robustness.made_report import make_report
from tests.training.conftest import start

RESULTS = Path(__file__).parents[2] / "docs" / "results.md"
SHIPPED = RESULTS.parent / "results"
EVALUATION = "cifar10-deit-elliptical-cifar10-deit-fgsm-pgd-ac49bd37"


def shipped(name: str) -> dict[str, Any]:
    return json.loads((SHIPPED / f"{name}.json").read_text(encoding="utf-8"))


def test_page_is_made_of_what_tiny_runs_recorded(text_recipe: Path) -> None:
    runs, docs = [], text_recipe.parent / "docs"
    for seed in (0, 1):
        choice = ["variant=transformer", "size=small", f"seed={seed}", "train.clip_norm=0.5"]
        trainer = start(text_recipe, f"words-{seed}", *choice)
        runs.append((trainer.folder, trainer.run()))
    (docs / "results").mkdir(parents=True)
    papers = {"imdb": {"source": "a table", "transformer": 0.813}}
    (docs / "results" / PAPERS).write_text(json.dumps(papers))
    folders = [str(folder) for folder, _ in runs]
    assert main(["collect", *folders, "--output", str(docs / "results.md")]) == 0
    text = (docs / "results.md").read_text()
    for seed, (_, metrics) in enumerate(runs):
        low, high = wilson(round(metrics["test_accuracy"] * 32), 32)
        size = f"{metrics['parameters'] / 1e6:.2f} M"
        assert f"| words-transformer | small | {seed} | {size} | 128 | 32 |" in text
        accuracy = f"| {100 * metrics['test_accuracy']:.2f} | [{100 * low:.1f}, {100 * high:.1f}] |"
        assert accuracy in text and metrics["environment"]["commit"][:8] in text
        record = json.loads((docs / "results" / f"words-{seed}.json").read_text())
        assert 0 <= record["rate"]["waiting"] <= 1
        assert f"| {record['rate']['steps_per_second']:.2f} |" in text
    again = collect(runs[0][0], text_recipe.parent / "own", text_recipe.parent)
    assert json.loads(again.read_text())["changes"] == ["train.clip_norm=0.5"]
    assert "mean of 2, ± s.d." in text and "| 81.3 |" in text
    assert "**Learned from a part of the training split: no result on the whole set.**" in text
    assert "a part, not the whole split" in text and "Paper: a table" in text
    written = "".join(path.read_text() for path in docs.rglob("*.*"))
    assert str(text_recipe.parent) not in written


def test_teacher_warnings_and_attacks_without_steps_are_told() -> None:
    run, evaluation = shipped("cifar10-deit-small-seed1"), shipped(EVALUATION)
    assert "| cifar10-deit | small |" in page([run], {})
    run["recipe"]["distillation"] = {"teacher_epochs": 1, "weight": 0.5, "temperature": 2.0}
    assert "| cifar10-deit, distilled | small |" in page([run], {})
    assert "| fgsm, 1 step | 1/255 |" in page([evaluation], {})
    evaluation["summary"]["models"][0]["attacks"][0]["steps"] = None
    evaluation["summary"]["warnings"] = [{"message": "something is odd"}]
    text = page([evaluation], {})
    assert "| fgsm | 1/255 |" in text and "Warning: something is odd" in text


def test_papers_know_a_variant_by_its_attention() -> None:
    run = shipped("lra-text-transformer-small")
    papers = {"lra-text": {"source": "a table", "lra_transformer": 0.65, "performer": 0.638}}
    assert "| 65.0 |" in page([run], papers)
    run["recipe"]["model"]["attention"] = "performer"
    assert "| 63.8 |" in page([run], papers)
    run["recipe"]["model"]["attention"] = "kde"
    assert "| 65.0 |" not in page([run], papers)


def test_attentions_stand_side_by_side_under_the_budget_of_their_recipe() -> None:
    names = ("transformer-small", "transformer-small-seed1", "performer-small", "bag-small",
             "linformer-small", "transject-small")  # fmt: skip
    runs = [shipped(f"lra-listops-{name}") for name in names]
    first, second, *_ = (f"{100 * run['metrics']['test_accuracy']:.2f}" for run in runs)
    mean = (float(first) + float(second)) / 2
    lines = section(runs).splitlines()
    table = [line.split(" | ")[0].lstrip("| ") for line in lines[6:]]
    assert table == ["`dot`", "`linformer`", "`performer`", "`bag_of_tokens`", "`transject`"]
    assert f"| `dot` | {mean:.2f} ± " in lines[6] and lines[6].endswith(" (2) |")
    runs[2]["changes"] = ["train.steps=1"]
    assert "`performer`" not in section(runs)
    runs[2]["changes"] = ["train.accumulate=1"]
    runs[2]["recipe"]["model"]["attention_options"] = {"estimator": "random"}
    assert "| `performer` estimator=random |" in section(runs)
    assert section(runs[:3]) == "", "a task with few attentions"


def test_accuracy_of_the_commonest_class_heads_a_table_that_knows_it() -> None:
    runs = [shipped(f"lra-listops-{name}-small") for name in ("transformer", "transject")]
    for run in runs:
        run["metrics"].pop("majority_accuracy", None)
    assert "majority class" not in page(runs, {})
    runs[1]["metrics"] |= {"majority_accuracy": 0.145, "test_samples": 2000}
    rows = [row for row in page(runs, {}).splitlines() if row.startswith("| ")]
    low, high = wilson(290, 2000)
    figures = f"| 2,000 | 14.50 | [{100 * low:.1f}, {100 * high:.1f}] |"
    majority = next(row for row in rows if row.startswith("| majority class |"))
    assert figures in majority and rows.index(majority) < len(rows) - 2


def test_runs_on_masks_have_a_table_of_their_own() -> None:
    run = shipped("cifar10-deit-small")
    run["recipe"] |= {"model": {"name": "segmenter_tiny"}, "name": "segmentation-segmenter"}
    run["recipe"]["data"]["source"], run["changes"] = "ade20k", []
    run["metrics"] |= {"test_accuracy": 0.7, "test_mean_class_accuracy": 0.412}
    run["metrics"] |= {"test_mean_iou": 0.3311, "majority_accuracy": 0.25}
    known = {"source": "a table", "segmenter_tiny": 0.779, "mean_iou": {"segmenter_tiny": 0.3544}}
    text = page([run], {"ade20k": known})
    assert "| segmentation-segmenter | small | 0 | 41.20 | 33.11 | 35.44 |" in text
    assert "| 70.00 |  | 77.9 |" in text and "| 25.00 |  |" in text  # no interval of images
    run["metrics"]["test_item_mean_iou"] = 0.2987
    assert "| 41.20 | 33.11 |  | 29.87 |" in page([run], {})


def test_unfinished_run_and_foreign_folder_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, old, output = tmp_path / "run", tmp_path / "old", tmp_path / "results.md"
    for folder, metrics in ((run, {"test_samples": 5}), (old, dict.fromkeys(OF_RUN))):
        folder.mkdir()
        (folder / "metrics.json").write_text(json.dumps(metrics))
    (old / "run.json").write_text("{}")
    assert main(["collect", str(run), str(old), str(tmp_path)]) == 1
    assert output.is_file()  # what can be taken up is, whatever stands beside it
    errors = capsys.readouterr().err
    assert "no finished run: its metrics lack test_accuracy" in errors
    assert "was trained before version 0.2.0" in errors
    assert "holds neither a run with metrics nor an evaluation" in errors


def test_evaluations_of_other_models_or_radii_are_records_of_their_own(tmp_path: Path) -> None:
    asked = {"first": "2/255", "again": "2/255", "model": "2/255", "radius": "8/255"}
    for name, eps in asked.items():
        make_report(tmp_path / name, 4, attacks=[{"name": "fgsm", "eps": [eps]}])
    report = json.loads((tmp_path / "model" / REPORT).read_text())
    report["summary"]["models"][0]["digest"] = "c" * 64
    (tmp_path / "model" / REPORT).write_text(json.dumps(report))
    kept = [collect(tmp_path / name, tmp_path / "results", tmp_path) for name in asked]
    assert kept[0] == kept[1] and kept[0].stem.startswith("one-fgsm-")
    assert len(set(kept)) == len(read_records(tmp_path / "results")) == 3
    record = json.loads(kept[0].read_text())
    assert record["kind"] == "evaluation" and not {"samples", "definitions"} & record.keys()


@pytest.mark.parametrize(
    ("content", "message"),
    [("[]", "some.json is no record"), ('{"kind": "poem"}', "of no known kind: 'poem'")],
)
def test_file_that_is_no_record_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "some.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_records(tmp_path)


@pytest.mark.parametrize("path", sorted((SHIPPED / "weights").iterdir()))
def test_kept_weights_are_of_the_model_that_the_record_names(path: Path) -> None:
    record = shipped(path.stem)
    model = models.build(**record["recipe"]["model"])
    load_weights(model, path)
    assert sum(each.numel() for each in model.parameters()) == record["metrics"]["parameters"]


def test_shipped_page_is_what_the_shipped_records_give() -> None:
    papers, found = json.loads((SHIPPED / PAPERS).read_text()), read_records(SHIPPED)
    assert RESULTS.read_text(encoding="utf-8") == page(found, papers)
    for name, picture in pictures(found).items():
        assert (RESULTS.parent / "images" / name).read_text(encoding="utf-8") == picture

"""What is written beside the page: figures, JUnit XML, the card and the table of samples."""

import io
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pyarrow import parquet

from robustness.report.lookup import picture
from robustness.report.schema import Report, plain, read_report
from robustness.report.write import card, literal, write_companions
from tests.robustness.test_report_page import HOSTILE, ODD, WEIRD, made


def rows(folder: Path) -> list[dict[str, object]]:
    return parquet.read_table(folder / "samples.parquet").to_pylist()


def test_report_survives_being_written_and_read(tmp_path: Path) -> None:
    report = made(tmp_path, models=["one", "two"], names=[ODD] * 48)
    assert read_report(tmp_path) == report
    assert report.schema_version == 3 and len(report.code) == 64
    assert report.samples[0].name == plain(ODD) != ODD


def test_report_of_another_version_is_refused(tmp_path: Path) -> None:
    made(tmp_path)
    path = tmp_path / "report.json"
    path.write_text(path.read_text().replace('"schema_version":3', '"schema_version":2', 1))
    with pytest.raises(ValueError, match="schema_version must be 3, got 2"):
        read_report(tmp_path)


def test_result_keeps_the_keys_that_clients_rely_on(tmp_path: Path) -> None:
    summary = made(tmp_path, gate="robust_accuracy >= 0.1").to_json()["summary"]
    assert {"models", "comparison", "gate", "warnings", "reliable"} <= set(summary)
    model = summary["models"][0]
    known = {"name", "digest", "runtime", "precision", "samples", "clean", "attacks", "worst"}
    assert known <= set(model)
    asked = {"name", "norm", "eps", "robust", "confirmed", "confirmed_8bit", "transfer_gap"}
    assert asked <= set(model["attacks"][0])
    assert {"top1", "ci"} <= set(model["attacks"][0]["robust"])
    assert list(model["worst"]) == ["2/255", "4/255", "8/255", "L2:0.5"]


def test_means_of_flags_are_the_figures(tmp_path: Path) -> None:
    report = made(tmp_path, models=["one", "two"])
    for position, model in enumerate(report.summary.models):
        flags = [sample.models[position] for sample in report.samples]
        assert sum(one.clean.correct for one in flags) / 48 == model.clean.top1
        for number, attack in enumerate(model.attacks):
            own = [one.attacks[number] for one in flags]
            assert sum(one.robust for one in own) / 48 == attack.robust.top1
            assert sum(bool(one.confirmed_8bit) for one in own) / 48 == attack.confirmed_8bit
        for number, found in enumerate(model.corruptions):
            own = [one.corruptions[number] for one in flags]
            assert sum(one.correct for one in own) / 48 == found.accuracy.top1
        for number, found in enumerate(model.certificates):
            own = [one.certificates[number] for one in flags]
            assert sum(one.correct for one in own) / 48 == found.curve[0].share
        assert sum(one.samples for one in model.classes) == 48
        weighted = sum(one.samples * one.clean for one in model.classes) / 48
        assert weighted == pytest.approx(model.clean.top1)


def test_minimal_distances_give_accuracy_at_every_radius(tmp_path: Path) -> None:
    report = made(tmp_path, samples=200)
    [curve] = report.summary.models[0].minimal
    distances = [sample.models[0].minimal["Linf"] for sample in report.samples]
    for eps, accuracy in zip(curve.eps, curve.accuracy, strict=True):
        assert accuracy == sum(d is None or d > eps for d in distances) / 200
    assert curve.eps[0] == 0 and curve.eps == sorted(curve.eps)


def test_corruptions_are_measured_against_the_second_model(tmp_path: Path) -> None:
    first, second = made(tmp_path, models=["one", "two"]).summary.models
    errors = [
        [1 - c.accuracy.top1 for c in model.corruptions if c.name == name]
        for name in ("fog", "gaussian_noise")
        for model in (first, second)
    ]
    ratios = [sum(errors[i]) / sum(errors[i + 1]) for i in (0, 2)]
    assert first.mce == pytest.approx(sum(ratios) / 2)
    assert second.mce is None


def test_gate_asks_for_the_worst_over_all_kinds_of_budget(tmp_path: Path) -> None:
    report = made(tmp_path, gate="robust_accuracy >= 0.01")
    [model], gate = report.summary.models, report.summary.gate
    assert gate is not None and model.largest is not None
    assert gate.value == model.largest.ci[0]
    assert model.largest.top1 <= min(model.worst["8/255"].top1, model.worst["L2:0.5"].top1)


def test_junit_has_a_case_for_every_figure_the_warnings_and_the_gate(tmp_path: Path) -> None:
    report = made(tmp_path, models=[HOSTILE, WEIRD], gate="robust_accuracy >= 0.9")
    write_companions(tmp_path, report)
    root = ElementTree.parse(tmp_path / "report.junit.xml").getroot()
    names = [case.get("name") for case in root.iter("testcase")]
    cells = len(report.spec.cells)
    assert len(names) == 2 * (cells + 2) + 1 == int(root.get("tests", ""))
    assert "square L2 0.5" in names and "fog severity 3" in names
    [failure] = root.iter("failure")
    assert "lower bound" in failure.get("message", "") and root.get("failures") == "1"


def test_unresolved_warning_fails_its_case(tmp_path: Path) -> None:
    report = made(tmp_path)
    summary = report.summary.model_dump() | {
        "warnings": [{"code": "odd", "model": "one", "message": "odd"}],
        "reliable": False,
    }
    write_companions(tmp_path, Report.model_validate(report.model_dump() | {"summary": summary}))
    root = ElementTree.parse(tmp_path / "report.junit.xml").getroot()
    assert [failure.get("type") for failure in root.iter("failure")] == ["odd"]
    assert "**Unreliable** (one): odd" in (tmp_path / "card.md").read_text()


def test_card_holds_no_markup_of_strangers(tmp_path: Path) -> None:
    hostile = "a|b\n# c [x](javascript:1) <b>`*"
    text = card(made(tmp_path, models=[hostile]))
    assert (
        "\n# c" not in text and "[x](" not in text.replace("\\[x\\]\\(", "") and "<b>" not in text
    )
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {7}
    assert literal("8/255 *") == "8/255 \\*"


def test_table_has_a_row_for_every_sample_model_and_cell(tmp_path: Path) -> None:
    report = made(tmp_path, models=["one", "two"], names=[ODD] * 48)
    write_companions(tmp_path, report)
    table = rows(tmp_path)
    assert len(table) == 48 * 2 * (1 + len(report.spec.cells))
    chosen = [
        row for row in table
        if row["model"] == "two" and row["attack"] == "autoattack" and row["point"] == "4/255"
    ]  # fmt: skip
    flags = [
        next(a for a in sample.models[1].attacks if (a.name, a.eps) == ("autoattack", "4/255"))
        for sample in report.samples
    ]
    assert [row["robust"] for row in chosen] == [one.robust for one in flags]
    assert [row["part"] for row in chosen] == ["apgd-ce"] * 48


def test_pictures_are_drawn_of_parts_and_of_nearest_inputs(tmp_path: Path) -> None:
    made(tmp_path)
    for attack, eps in (("autoattack", "4/255"), ("fab-t", "4/255"), ("square", "0.5")):
        clean = picture(tmp_path, 33, "clean")
        changed = picture(tmp_path, 33, "adversarial", attack=attack, eps=eps)
        assert io.BytesIO(changed).read(4) == b"\x89PNG" and changed != clean
        assert picture(tmp_path, 33, "perturbation", attack=attack, eps=eps) != changed

"""The forms of a report: figures, page, JUnit XML, card, table; what they say and refuse to run."""

import csv
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from pyarrow import parquet
from torch import Tensor, nn

import models
from robustness import console
from robustness import store as shards
from robustness.evaluation import evaluate
from robustness.report import html
from robustness.report.exhibits import BUDGET, Texts, choose
from robustness.report.lookup import InputLost, adversarial_input, clean_input, picture
from robustness.report.schema import AttackFlags, Report, plain, read_report
from robustness.report.sentences import findings, interval, lines, percent
from robustness.report.write import as_csv, card, literal, sample_rows, write_companions
from robustness.spec import EvaluationSpec
from robustness.store import Shard, as_array
from tests.robustness.conftest import SIZE, make_images, make_target
from tests.robustness.faulty_models import put
from tests.robustness.made_report import make_report
from tests.service.page import browser, needs_browser

HOSTILE = "</title></style><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
WEIRD = "\"'&\x00\x1b\u202e]]><b>"
ODD = WEIRD + "\ud800"  # what a file system may name a file, and no text may hold


@dataclass(frozen=True)
class Made:
    """An evaluation's folder with all files of a report."""

    folder: Path
    report: Report


def written(folder: Path, **changes: Any) -> Made:
    report = make_report(folder, **changes)
    write_companions(folder, report)
    return Made(folder, report)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Of two models with a gate that fails; what no test changes."""
    gate = "robust_accuracy >= 0.9"
    return written(tmp_path_factory.mktemp("two"), models=["one", "two"], gate=gate)


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Of models, classes and inputs with hostile names; what no test changes."""
    classes, names = [HOSTILE, ODD, "c", "d"], [HOSTILE, ODD] * 24
    folder = tmp_path_factory.mktemp("strange")
    return written(folder, names=names, classes=classes, models=[HOSTILE, WEIRD])


class Seen(HTMLParser):
    """The tags, the attributes and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def seen(folder: Path) -> Seen:
    page = Seen()
    page.feed((folder / "report.html").read_text(encoding="utf-8"))
    return page


def one_line(text: str) -> str:
    return " ".join(text.split())


def assert_said_everywhere(sentences: list[str], folder: Path, report: Report) -> str:
    """Page, card, JUnit and terminal say the sentences; returns what the cases of JUnit say."""
    junit = ElementTree.parse(folder / "report.junit.xml").getroot()
    outputs = "\n".join(case.text or "" for case in junit.iter("system-out"))
    card = (folder / "card.md").read_text().replace("\\", "")
    for form in (seen(folder).text, card, outputs, console.render(report)):
        assert all(one_line(sentence) in one_line(form) for sentence in sentences)
    return outputs


def test_page_has_the_result_before_everything_else_and_asks_for_nothing(two: Made) -> None:
    page, first = seen(two.folder), two.report.summary.models[0]
    assert first.largest is not None
    left, right = round(48 * first.largest.top1), round(48 * first.clean.top1)
    sentence = f"one classifies {right} of 48 images correctly."
    worst = f"Under the worst attack within 8/255 or within 0.5 (l2), {left} remain correct."
    assert f"{sentence} {worst}" in page.text
    text = page.text
    assert text.index(sentence) < text.index("Accuracy over the size") < text.index("Evidence")
    assert "Gate robust_accuracy >= 0.9: failed" in text
    assert "at most 8 of its 255 levels" in text
    for title in ("Attacks", "By class", "Common corruptions", "Certificates", "reproduce"):
        assert title in text
    assert "./assay verify" in text
    links = [value for name, value in page.attributes if name in ("src", "href", "xlink:href")]
    assert links and all((value or "").startswith("data:image/png;base64,") for value in links)
    contents = [value or "" for name, value in page.attributes if name == "content"]
    assert any(value.startswith("default-src 'none'; style-src 'sha256-") for value in contents)
    source = (two.folder / "report.html").read_text()
    assert not any(word in source for word in ("url(", "@import", str(two.folder)))


def test_names_of_strangers_stay_text(strange: Made) -> None:
    page = seen(strange.folder)
    assert "script" not in page.tags and "b" in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "style"]
    assert not [value for _, value in page.attributes if "javascript:" in (value or "")]
    assert HOSTILE in page.text


def test_pictures_are_left_out_where_inputs_are_lost(tmp_path: Path) -> None:
    report = make_report(tmp_path)
    for path in (tmp_path / "shards").rglob("*.safetensors"):
        path.write_bytes(b"damaged")
    write_companions(tmp_path, report)
    page = seen(tmp_path)
    assert "img" not in page.tags and "Evidence" in page.text


def network(name: str, side: int) -> nn.Module:
    return models.build(
        name, img_size=side, patch_size=side // 2, in_chans=1, num_classes=4, embed_dim=16,
        num_heads=2, depth=3,
    ).eval()  # fmt: skip


def test_attention_is_shown_before_and_after(tmp_path: Path) -> None:
    write_companions(tmp_path, make_report(tmp_path, samples=8), network("deit_tiny_elliptical", 8))
    text = seen(tmp_path).text
    assert text.count("attention before") == text.count("attention after") > 0


class Wrapped(nn.Module):
    """One of our networks inside another module, called once or on the mirrored image, too."""

    def __init__(self, *, mirrored: bool) -> None:
        super().__init__()
        self.network = network("deit_tiny", SIZE)
        self.mirrored = mirrored

    def forward(self, images: Tensor) -> Tensor:
        logits = self.network(images)
        return logits + self.network(images.flip(-1)) if self.mirrored else logits


@pytest.mark.parametrize(
    ("mirrored", "reason"),
    [(False, "model must be built by models.build"), (True, "model must call each of its layers")],
)
def test_a_network_without_maps_is_evaluated_to_a_finished_report(
    mirrored: bool, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        target = put(make_target(4), Wrapped(mirrored=mirrored).eval())
    spec = EvaluationSpec.model_validate({"attacks": [{"name": "fgsm", "eps": ["8/255"]}]})
    report = evaluate(spec, [target], make_images(6, num_classes=None), tmp_path)
    assert read_report(tmp_path) == report
    assert f"Attention maps are not shown: {reason}" in seen(tmp_path).text
    assert "no attention maps in the report" in caplog.text


def test_examples_are_spread_over_classes_and_limited_by_size(tmp_path: Path) -> None:
    samples = make_report(tmp_path, samples=200).samples
    shown = choose(samples)
    fallen = [example for example in shown if not example.attack.confirmed]
    assert len(fallen) == 12 and len(shown) == 15
    assert len({example.clean.index for example in fallen[:4]}) == 4
    margins = [example.attack.margin or 0.0 for example in shown if example.attack.confirmed]
    assert margins == sorted(margins) and len(set(margins)) == 3
    assert len(choose(samples, pixel_bytes=BUDGET)) == 2


def test_page_of_large_colour_images_stays_small(tmp_path: Path) -> None:
    attacks = [{"name": "fgsm", "eps": "8/255"}]
    written(tmp_path, samples=20, channels=3, side=224, attacks=attacks)
    assert 2**20 < (tmp_path / "report.html").stat().st_size < 15 * 10**6


@pytest.mark.parametrize(
    ("labelled", "said"),
    [
        (True, ("of 20 images correctly.", "are classified correctly on average (95\u00a0% in")),
        (False, ("without labels.", "of its predictions on average (95\u00a0% in")),
    ],
)
def test_every_form_says_the_same_of_corruptions_alone(
    labelled: bool, said: tuple[str, str], tmp_path: Path
) -> None:
    attacks = [{"name": "corruptions", "names": ["fog"], "severities": [1, 3]}]
    gate = "robust_accuracy >= 0.1"
    report = make_report(tmp_path, samples=20, labelled=labelled, attacks=attacks, gate=gate)
    write_companions(tmp_path, report)
    headline = report.summary.headline
    found = report.summary.models[0].corrupted
    assert found is not None and percent(found.top1, 20) in headline
    assert said[0] in headline and said[1] in headline
    if not labelled:
        assert "correct" not in headline
    assert_said_everywhere(lines(report.summary), tmp_path, report)
    assert "severity 3" in seen(tmp_path).text
    assert report.summary.gate is not None and not report.summary.gate.passed


def test_every_form_has_the_sentences_of_the_report(two: Made) -> None:
    summary = two.report.summary
    assert summary.gate is not None and summary.comparison is not None
    sentences = [*lines(summary), summary.gate.finding]
    outputs = assert_said_everywhere(sentences, two.folder, two.report)
    assert all(attack.finding in outputs for attack in summary.models[0].attacks)


@pytest.mark.parametrize(
    "attack", [{"name": "corruptions", "severities": [5]}, {"name": "smoothing"}]
)
def test_an_interval_is_that_of_the_figure_beside_it(attack: Any, tmp_path: Path) -> None:
    report = make_report(tmp_path, samples=40, attacks=[attack])
    write_companions(tmp_path, report)
    [model] = report.summary.models
    own = model.corrupted or model.certificates[0].curve[0]
    shown = interval(own.ci, 40)
    assert shown != interval(model.clean.ci, 40) and shown in report.summary.headline
    assert interval(model.clean.ci, 40) not in " ".join(lines(report.summary))
    assert seen(tmp_path).text.count(shown) >= 2  # headline and readings
    assert shown in (tmp_path / "card.md").read_text().replace("\\", "")
    assert "8bit" not in "".join(report.definitions) and "8-bit" not in seen(tmp_path).text


@pytest.mark.parametrize(
    ("name", "kind", "words", "other"),
    [
        ("typos", "text", (), ("served model", "8-bit", "No attack succeeded")),
        ("hotflip", "text", ("also mislead the served model",), ("8-bit",)),
        ("square", "image", ("mislead the model when written as an 8-bit PNG",), ("also mislead",)),
        ("pgd", "image", ("also mislead the served model", "8-bit PNG"), ()),
    ],
)
def test_of_the_served_model_is_said_what_an_attack_did_not_ask_it(
    name: str, kind: str, words: tuple[str, ...], other: tuple[str, ...], tmp_path: Path
) -> None:
    attacks = [{"name": "pgd", "eps": ["4/255"]}]
    [model] = make_report(tmp_path, samples=20, attacks=attacks).summary.models
    found = [one.model_copy(update={"name": name}) for one in model.attacks]
    said = " ".join(findings(model.model_copy(update={"attacks": found}), "accuracy", kind))
    assert all(one in said for one in words) and not any(one in said for one in other)


@needs_browser
def test_browser_shows_the_page_at_any_width_and_runs_nothing(
    strange: Made, tmp_path: Path
) -> None:
    with browser(tmp_path) as driver:
        for width in (360, 1200):
            size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            driver.get((strange.folder / "report.html").as_uri())
            shown = driver.execute_script(
                "const styled = getComputedStyle(document.body).marginTop;"
                "const drawn = (image) => image.complete && image.naturalWidth > 0;"
                "return [document.documentElement.scrollWidth, window.hacked || 0, styled,"
                "[...document.images].every(drawn)]"
            )
            assert shown[0] <= width and shown[1:] == [0, "0px", True]
        assert driver.get_log("browser") == []


def test_change_of_a_text_is_marked_word_by_word(tmp_path: Path) -> None:
    report = make_report(tmp_path, classes=[HOSTILE, "b", "c", "d"])
    long = "so " * 200
    views = Texts(clean=f"a <b>good</b> film {long}", adversarial=f"a <i>gaad</i> film {long}")
    [example, *_] = choose(report.samples)
    page = html.render(report, [(example, views)])
    text = page[page.index("<blockquote>") : page.index("</blockquote>")]
    assert "<del>&lt;b&gt;good&lt;/b&gt;</del><ins>&lt;i&gt;gaad&lt;/i&gt;</ins>" in text
    assert "<img" not in page and "<b>good" not in text
    assert len(text) < 500 and " … " in text


def test_stored_texts_are_read_back(tmp_path: Path) -> None:
    texts, digest = ["one", "two <b>\ud800"], "a" * 64
    spec = EvaluationSpec.model_validate({"attacks": [{"name": "typos", "edits": [2]}]})
    [cell] = spec.cells
    shard = Shard(
        model=digest, attack="typos", part=cell.attack, budget=cell.budget, variant="plain", start=0
    )
    shards.write(shards.clean_path(tmp_path, digest, 0), {"clean": as_array(texts)}, {})
    shards.write(shard.path(tmp_path), {"texts": as_array(texts[::-1])}, {})
    assert clean_input(tmp_path, digest, 1) == texts[1]
    flags = AttackFlags.model_construct(
        name="typos", eps="2", norm=None, part="typos", variant="plain"
    )
    assert adversarial_input(tmp_path, digest, 0, spec, flags) == texts[1]
    with pytest.raises(InputLost):
        clean_input(tmp_path, digest, 32)


def test_report_survives_being_written_and_read_by_its_own_version(
    strange: Made, tmp_path: Path
) -> None:
    report = strange.report
    assert read_report(strange.folder) == report
    assert report.schema_version == 4 and len(report.code) == 64
    assert report.samples[1].name == plain(ODD) != ODD
    text = (strange.folder / "report.json").read_text()
    other = text.replace('"schema_version":4', '"schema_version":3', 1)
    (tmp_path / "report.json").write_text(other)
    with pytest.raises(ValueError, match="has schema_version 3, .* reads 4"):
        read_report(tmp_path)


def test_result_keeps_the_keys_that_clients_rely_on(two: Made) -> None:
    summary = two.report.to_json()["summary"]
    assert {"models", "comparison", "gate", "warnings", "reliable"} <= set(summary)
    model = summary["models"][0]
    known = {"name", "digest", "runtime", "precision", "samples", "clean", "attacks", "worst"}
    assert known <= set(model)
    asked = {"name", "norm", "eps", "robust", "confirmed", "confirmed_8bit", "transfer_gap"}
    assert asked <= set(model["attacks"][0])
    assert {"top1", "ci"} <= set(model["attacks"][0]["robust"])
    assert list(model["worst"]) == ["2/255", "4/255", "8/255", "L2:0.5"]


def test_means_of_flags_are_the_figures(two: Made) -> None:
    for position, model in enumerate(two.report.summary.models):
        flags = [sample.models[position] for sample in two.report.samples]

        def mean(kind: str, number: int, name: str, flags: Any = flags) -> float:
            return sum(bool(getattr(getattr(one, kind)[number], name)) for one in flags) / 48

        assert sum(one.clean.correct for one in flags) / 48 == model.clean.top1
        for number, attack in enumerate(model.attacks):
            assert mean("attacks", number, "robust") == attack.robust.top1
            assert mean("attacks", number, "confirmed_8bit") == attack.confirmed_8bit
        for number, found in enumerate(model.corruptions):
            assert mean("corruptions", number, "correct") == found.accuracy.top1
        for number, found in enumerate(model.certificates):
            assert mean("certificates", number, "correct") == found.curve[0].share
        assert sum(one.samples for one in model.classes) == 48
        weighted = sum(one.samples * one.clean for one in model.classes) / 48
        assert weighted == pytest.approx(model.clean.top1)
        [curve] = model.minimal
        distances = [one.minimal["Linf"] for one in flags]
        for eps, accuracy in zip(curve.eps, curve.accuracy, strict=True):
            assert accuracy == sum(d is None or d > eps for d in distances) / 48
        assert curve.eps[0] == 0 and curve.eps == sorted(curve.eps)


def test_corruptions_are_measured_against_the_second_model(two: Made) -> None:
    first, second = two.report.summary.models
    errors = [
        [1 - c.accuracy.top1 for c in model.corruptions if c.name == name]
        for name in ("fog", "gaussian_noise")
        for model in (first, second)
    ]
    ratios = [sum(errors[i]) / sum(errors[i + 1]) for i in (0, 2)]
    assert first.mce == pytest.approx(sum(ratios) / 2)
    assert second.mce is None


def test_gate_asks_for_the_worst_over_all_kinds_of_budget(two: Made) -> None:
    model, gate = two.report.summary.models[0], two.report.summary.gate
    assert gate is not None and model.largest is not None
    assert gate.value == model.largest.ci[0]
    assert model.largest.top1 <= min(model.worst["8/255"].top1, model.worst["L2:0.5"].top1)


def test_junit_has_a_case_for_every_figure_the_warnings_and_the_gate(two: Made) -> None:
    root = ElementTree.parse(two.folder / "report.junit.xml").getroot()
    names = [case.get("name") for case in root.iter("testcase")]
    cells = len(two.report.spec.cells)
    assert len(names) == 2 * (cells + 2) + 1 == int(root.get("tests", ""))
    assert "square L2 0.5" in names and "fog severity 3" in names
    [failure] = root.iter("failure")
    assert "lower bound" in failure.get("message", "") and root.get("failures") == "1"


def test_warnings_mark_every_form_and_fail_their_case(tmp_path: Path) -> None:
    report = make_report(tmp_path)
    warning = {"code": "odd", "model": "one", "message": "Something <is> odd."}
    summary = report.summary.model_dump() | {"warnings": [warning], "reliable": False}
    write_companions(tmp_path, Report.model_validate(report.model_dump() | {"summary": summary}))
    root = ElementTree.parse(tmp_path / "report.junit.xml").getroot()
    assert [failure.get("type") for failure in root.iter("failure")] == ["odd"]
    assert "**Unreliable** (one): Something \\<is\\> odd." in (tmp_path / "card.md").read_text()
    text = seen(tmp_path).text
    assert "unreliable" in text and "Something <is> odd." in text
    assert "sanity checks passed" not in text


def test_card_and_junit_hold_no_markup_of_strangers(tmp_path: Path, strange: Made) -> None:
    ElementTree.parse(strange.folder / "report.junit.xml")
    hostile = "a|b\n# c [x](javascript:1) <b>`*"
    text = card(make_report(tmp_path, samples=4, models=[hostile]))
    assert (
        "\n# c" not in text and "[x](" not in text.replace("\\[x\\]\\(", "") and "<b>" not in text
    )
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {7}
    assert literal("8/255 *") == "8/255 \\*"


def test_table_has_a_row_for_every_sample_model_and_cell(two: Made) -> None:
    table = parquet.read_table(two.folder / "samples.parquet").to_pylist()
    assert len(table) == 48 * 2 * (1 + len(two.report.spec.cells))
    point = {"model": "two", "attack": "autoattack", "point": "4/255"}
    chosen = [row for row in table if point.items() <= row.items()]
    flags = [
        next(a for a in sample.models[1].attacks if (a.name, a.eps) == ("autoattack", "4/255"))
        for sample in two.report.samples
    ]
    assert [row["robust"] for row in chosen] == [one.robust for one in flags]
    assert [row["part"] for row in chosen] == ["apgd-ce"] * 48
    assert [row["probability"] for row in chosen] == [one.adversarial_probability for one in flags]
    with (two.folder / "samples.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["name"] for row in written] == [row["name"] for row in table]
    robust = ["" if row["robust"] is None else str(row["robust"]) for row in table]
    assert [row["robust"] for row in written] == robust


def test_csv_holds_no_formula(tmp_path: Path) -> None:
    text = as_csv(list(sample_rows(make_report(tmp_path, samples=1, names=['=1+1,"x']))))
    assert '\n0,"\'=1+1,""x",0,one,none,' in text.replace(text.split("\n")[0], "")


def test_parts_of_an_attack_share_what_it_misled(two: Made) -> None:
    model = two.report.summary.models[0]
    [most] = [one for one in model.attacks if (one.name, one.eps) == ("autoattack", "8/255")]
    assert [part.title for part in most.parts] == ["APGD-CE", "APGD-T", "FAB-T", "Square"]
    assert max(part.misled for part in most.parts) == most.successes > 0
    said = f"APGD-CE {most.parts[0].misled}"
    assert said in most.finding and said in one_line(seen(two.folder).text)
    assert not any(one.parts for one in model.attacks if one.name == "fgsm")


def test_pictures_are_drawn_of_parts_and_of_nearest_inputs(two: Made) -> None:
    for attack, eps in (("autoattack", "4/255"), ("fab-t", "4/255"), ("square", "0.5")):
        clean = picture(two.folder, 33, "clean")
        changed = picture(two.folder, 33, "adversarial", attack=attack, eps=eps)
        assert changed[:4] == b"\x89PNG" and changed != clean
        assert picture(two.folder, 33, "perturbation", attack=attack, eps=eps) != changed

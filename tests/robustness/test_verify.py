"""Reports are confirmed as they are, and refuted when anything that they rest on was changed."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data.sources import open_images
from robustness import store as shards
from robustness.__main__ import main
from robustness.evaluation import evaluate
from robustness.logits import label_rank
from robustness.rescore import Outcome, decide, may_be_best
from robustness.spec import EvaluationSpec
from robustness.tasks import Classification
from robustness.verify import lines, verify
from runtimes.artifact import open_artifact

Content = dict[str, Any]
SPEC = {
    "attacks": [
        {"name": "pgd", "eps": ["6/255"], "steps": 4},
        {"name": "fab-t", "eps": ["4/255", "20/255"], "steps": 4},
        {"name": "square", "eps": ["0.5"], "norm": "L2", "queries": 10},
        {"name": "corruptions", "names": ["contrast"], "severities": [4]},
    ],
    "gate": "robust_accuracy >= 0.01",
    "top_k": [1, 2],
}


@pytest.fixture(scope="module")
def made(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    pair = [open_artifact(artifacts / "elliptical"), open_artifact(artifacts / "dot")]
    images = open_images(artifacts / "images", label_names=pair[0].labels)
    evaluate(EvaluationSpec.model_validate(SPEC), pair, images, folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "evaluation"))


@pytest.fixture
def check(artifacts: Path, folder: Path) -> Callable[..., Outcome]:
    def run(**options: Any) -> Outcome:
        return verify(folder, folders=[artifacts], **options)

    return run


def put(place: str, value: Any) -> Callable[[Content], None]:
    """Changes what stands at a place such as "summary.gate.value": to a value, or by a function."""

    def change(content: Any) -> None:
        *way, last = [int(word) if word.isdigit() else word for word in place.split(".")]
        for key in way:
            content = content[key]
        content[last] = value(content[last]) if callable(value) else value

    return change


def edit(folder: Path, change: Callable[[Content], None]) -> None:
    path = folder / "report.json"
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


def test_report_is_confirmed(check: Callable[..., Outcome], artifacts: Path) -> None:
    reported: list[Any] = []
    outcome = check(data=str(artifacts / "images"), on_progress=reported.append)
    assert outcome.refuted == [] and outcome.flips == [] and outcome.confirmed
    # Of both models: clean, three flags of four attacks, one corruption; of the elliptical one
    # two ways of taking gradients under three of them.
    assert (outcome.inputs, outcome.flags) == (40, 2 * 40 * (1 + 3 * 4 + 1) + 40 * 3 * 2)
    assert reported[-1].done <= reported[-1].total
    assert "ranks below the first were read, and not scored again" in outcome.notes
    assert lines(outcome)[-1] == "CONFIRMED"


def test_sample_of_the_inputs_is_scored(check: Callable[..., Outcome]) -> None:
    outcome = check(limit=7)
    assert outcome.confirmed and outcome.flags == 2 * 7 * (1 + 3 * 4 + 1) + 7 * 3 * 2
    assert "a sample of 7 of 40 inputs" in outcome.notes


def gate_beside_a_warning(content: Content) -> None:
    summary = content["summary"]
    name, figure = summary["models"][0]["name"], summary["models"][0]["largest"]
    summary["warnings"] = [{"code": "randomised", "model": name, "message": "It draws."}]
    summary["reliable"] = False
    summary["gate"] |= {"value": figure["ci"][0], "passed": True}


def other_model(content: Content) -> None:
    models = content["summary"]["models"]
    models[0]["digest"], models[1]["digest"] = models[1]["digest"], models[0]["digest"]


ATTACKS = "samples.5.models.0.attacks"
FIGURES = {  # places: what they are changed to, and what is said of each
    f"{ATTACKS}.0.robust": (
        lambda flag: not flag,
        "samples .*, models elliptical, attacks pgd 6/255, robust is",
    ),
    f"{ATTACKS}.0.confirmed": (lambda flag: not flag, "pgd 6/255, confirmed is"),
    f"{ATTACKS}.0.confirmed_8bit": (lambda flag: not flag, "6/255, confirmed_8bit is"),
    f"{ATTACKS}.0.distance": (lambda far: far + 0.01, "pgd 6/255, distance is"),
    f"{ATTACKS}.0.adversarial_probability": (0.001, "6/255, adversarial_probability is 0.0010"),
    f"{ATTACKS}.0.gradients": (None, "pgd 6/255, gradients is None"),
    f"{ATTACKS}.3.adversarial_index": (
        lambda index: (index + 1) % 3,
        "square 0.5, adversarial_index is",
    ),
    "samples.35.models.0.clean.correct": (lambda flag: not flag, "clean, correct is"),
    "samples.0.models.0.clean.index": (3, "elliptical, clean, index is 3"),
    "samples.2.models.0.corruptions.0.correct": (
        lambda flag: not flag,
        "corruptions contrast 4, correct is",
    ),
    "samples.9.models.0.attacks": (
        lambda found: found[1:],
        "the length of .* attacks is 3, and the stored results give 4",
    ),
    "summary.models.0.attacks.0.robust.top1": (
        0.999,
        "elliptical, attacks pgd 6/255, robust, top1 is 0.9990, and the stored results give",
    ),
    "summary.models.0.worst.6/255.ci": ([0.4, 0.41], "6/255, ci 1 is 0.4000"),
    "summary.models.0.largest.top1": (1.0, "elliptical, largest, top1 is 1.0000"),
    "summary.comparison.clean.p_value": (1e-9, "comparison, clean, p_value is 0.0000"),
    "summary.gate.value": (0.9, "gate, value is 0.9000"),
    "seed": (7, "seed is 7, and the stored results give 0"),
    "shard_size": (7, "shard_size is 7"),
    "definitions.robust": ("right", "definitions, robust is right"),
    "data.samples": (41, "data, samples is 41, and the stored results give 40"),
}


def test_every_changed_figure_is_refuted(folder: Path, check: Callable[..., Outcome]) -> None:
    for place, (value, _) in FIGURES.items():
        edit(folder, put(place, value))
    outcome = check(limit=1)
    assert not outcome.confirmed and lines(outcome)[-1] == "REFUTED"
    for place, (_, message) in FIGURES.items():
        assert any(re.search(message, text) for text in outcome.refuted), place


def test_sentences_of_other_code_are_not_compared_and_its_figures_are(
    folder: Path, check: Callable[..., Outcome]
) -> None:
    words: dict[str, Any] = {
        "summary.headline": "It holds.",
        "summary.findings": ["Once more."],
        "summary.models.0.outcome": "4/10",
        "summary.models.0.attacks.0.finding": "PGD misleads it.",
        "summary.comparison.finding": "No difference.",
        "summary.gate.reason": "none",
        "notes": [],
        "definitions.robust": "right",
    }
    for place, value in words.items():
        edit(folder, put(place, value))
    refuted = check(limit=1).refuted
    assert len(refuted) == len(words), refuted  # of the same code all are compared
    edit(folder, put("code", "0" * 64))
    outcome = check(limit=1)
    assert outcome.confirmed and any("its sentences were not checked" in n for n in outcome.notes)
    edit(folder, put("summary.models.0.largest.top1", 1.0))
    assert any("largest, top1 is 1.0000" in text for text in check(limit=1).refuted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("samples.4.label", lambda label: (label + 1) % 3), "or the labels are not those"),
        (gate_beside_a_warning, "gate, passed is True, and the stored results give False"),
        (put("spec.attacks.1.eps.0", "3/255"), "result-fab-t-.* is missing or damaged"),
        (put("samples", lambda found: found[1:]), "speak of another number of inputs"),
        (put("summary.models.0.name", "safe"), "the artifact of safe is called"),
        (put("summary.models.0.version", lambda version: version + "1"), "has the version"),
        (put("environment.threads", "0"), "impossible number of threads"),
        (put("data.labels", lambda labels: labels[::-1]), "the classes of .* are not those"),
        (other_model, "is not as reported|is called"),
    ],
)
def test_changed_report_is_refuted(
    change: Callable[[Content], None], message: str, folder: Path, check: Callable[..., Outcome]
) -> None:
    edit(folder, change)
    outcome = check(limit=1)
    assert not outcome.confirmed
    assert any(re.search(message, text) for text in outcome.refuted)


def shard(folder: Path, pattern: str) -> Path:
    digest = json.loads((folder / "report.json").read_bytes())["summary"]["models"][0]["digest"]
    return next((folder / "shards" / digest[:16]).glob(pattern))


def test_damaged_or_missing_shard_is_refuted(folder: Path, check: Callable[..., Outcome]) -> None:
    path = shard(folder, "pgd-*-stopped-000032*")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    missing = shard(folder, "square-*-000000*")
    missing.unlink()
    refuted = check().refuted
    assert f"elliptical: {path.name} is missing or damaged" in refuted
    assert f"elliptical: {missing.name} is missing or damaged" in refuted
    shard(folder, "clean-000000*").unlink()
    assert check().refuted == ["clean-000000.safetensors is missing or damaged"]


def test_other_data_are_refuted(
    artifacts: Path, check: Callable[..., Outcome], tmp_path: Path
) -> None:
    other = Path(shutil.copytree(artifacts / "images", tmp_path / "images"))
    first = next(other.rglob("004.png"))
    Image.fromarray(np.full((8, 8), 9, np.uint8)).save(first)
    assert "another one in the data" in check(data=str(other)).refuted[0]
    first.unlink()
    assert "the data have no input" in check(data=str(other)).refuted[0]


def test_command_exits_with_0_1_and_2(
    artifacts: Path, folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = str(folder / "report.json")
    models = ["--artifact", str(artifacts / "dot"), str(artifacts / "elliptical")]
    assert main(["verify", report, *models, "--limit", "3"]) == 0
    assert capsys.readouterr().out.endswith("CONFIRMED\n")
    assert main(["verify", report, "--artifact", str(artifacts / "dot")]) == 2
    assert "of 'elliptical'; name its folder with --artifact" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "nothing.json")]) == 2
    assert main(["verify", report, *models, "--limit", "0"]) == 2
    edit(folder, put("summary.gate.value", 0.9))
    assert main(["verify", report, *models, "--limit", "1"]) == 1
    assert "REFUTED: summary, gate, value is 0.9000" in capsys.readouterr().out
    edit(folder, lambda content: content.update(schema_version=3))
    assert main(["verify", report, *models]) == 2
    error = capsys.readouterr().err
    assert "has schema_version 3, and this version of Assay reads 4; read it with" in error


def test_flips_that_precision_explains_are_told_apart() -> None:
    logits = np.array([[5.0, 4.9999, 0.0], [5.0, 3.0, 0.0], [3.0, 5.0, 0.0], [4.9999, 5.0, 0.0]])
    labels = np.zeros(4, np.int64)
    ranks = [
        label_rank(Classification().shifted(logits, labels, k * 1e-4), labels) for k in (0, -1, 1)
    ]
    exact = np.array([True, True, False, False])
    wrong, flipped = decide(~exact, ranks)
    assert flipped.tolist() == [True, False, False, True]
    assert wrong.tolist() == [False, True, True, False]
    assert not np.any(decide(exact, ranks))
    index = np.array([1, 1, 0, 0])
    assert may_be_best(logits, index, error=1e-4).tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    "forged",
    [
        [("result-pgd-*-000000*", "worst", lambda a: a + 99, "results do not hold")],
        [("result-pgd-*-000000*", "worst", lambda a: a * np.nan, "results do not hold")],
        [("diagnostics*", "constant", lambda a: a[:0], "results do not hold")],
        [("clean-000032*", "clean", lambda a: a[..., :3], "different sizes")],
        [("clean-000000*", "clean", lambda a: a[::-1], "not those that the report was made of")],
        [
            ("pgd-*-000000*", "adversarial", lambda a: a * 0 + 0.5, "more than pgd may at 6/255"),
            ("square-*-000032*", "adversarial", lambda a: a[:2], "square.*not hold what it should"),
            ("fab-t-*-stopped-000000*", "nearest", lambda a: a / 2, "tells other distances than"),
            ("fab-t-*-stopped-000032*", "nearest", lambda a: a[:3], "fab.*not hold what it should"),
        ],
        [
            ("pgd-*-000000*", "adversarial", None, "pgd 6/255, robust is not as reported"),
            ("fab-t-*-0000*", "nearest", lambda a: a + np.inf, "nearest adversarial input is not"),
        ],
    ],
)
def test_forged_files_are_refuted(
    forged: list[Any], folder: Path, check: Callable[..., Outcome]
) -> None:
    """Files whose own checksums hold; without a change the clean inputs stand in."""
    clean = shards.whole(shard(folder, "clean-000000*"))
    for pattern, name, change, _ in forged:
        for path in shard(folder, pattern).parent.glob(pattern):
            tensors = shards.whole(path)
            tensors[name] = clean["clean"] if change is None else change(tensors[name])
            shards.write(path, tensors, {})
    refuted = check().refuted
    assert all(any(re.search(message, text) for text in refuted) for *_, message in forged)


def test_names_cannot_hide_the_result_on_a_terminal() -> None:
    outcome = Outcome(refuted=["input 1 (\x1b[2J\nCONFIRMED\x9b8m\u202e) is not as reported"])
    told = "".join(lines(outcome))
    assert told.isprintable() and lines(outcome)[-1] == "REFUTED" and len(lines(outcome)) == 3

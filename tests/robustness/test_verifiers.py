"""Properties for verifiers of others, and their answers held against the served model."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import vnnlib
import vnnlib.compat

from core.files import sha256
from data.sources import open_images
from robustness.__main__ import main
from robustness.evaluation import evaluate
from robustness.report.schema import Report
from robustness.spec import EvaluationSpec
from robustness.store import whole
from robustness.verifiers.properties import Properties, box
from robustness.verifiers.properties import vnnlib as property_text
from robustness.verifiers.replay import Outcomes
from runtimes.artifact import open_artifact
from runtimes.onnx import open_session
from tests.conftest import Once

EPS = ("1/255", "40/255")


@pytest.fixture(scope="module")
def converted(once: Once, artifacts: Path) -> Path:
    """A report of eight images, and its properties beside it."""

    def fill(folder: Path) -> None:
        model = open_artifact(artifacts / "elliptical")
        images = open_images(artifacts / "images", label_names=model.labels).take(range(0, 40, 5))
        spec = {"attacks": [{"name": name, "eps": [EPS[1]]} for name in ("fgsm", "graph-bounds")]}
        evaluate(EvaluationSpec.model_validate(spec), [model], images, folder)
        words = ["--eps", *EPS, "--frozen-metric", "--output", str(folder / "properties")]
        assert main(["convert", *named(folder, artifacts), "--to", "vnnlib", *words]) == 0

    return once("converted", fill)


def named(folder: Path, artifacts: Path) -> list[str]:
    return [str(folder / "report.json"), "--artifact", str(artifacts)]


def properties(folder: Path) -> Properties:
    return Properties.model_validate_json((folder / "properties/properties.json").read_bytes())


def test_each_image_and_budget_has_a_property_that_the_standards_parser_reads(
    converted: Path,
) -> None:
    known, folder = properties(converted), converted / "properties"
    assert len(known.properties) == 8 * 2 * 2 and known.difference < 1e-5
    report = Report.model_validate_json((converted / "report.json").read_bytes())
    [path] = sorted((converted / "shards").rglob("clean-*"))
    clean = whole(path)["clean"]
    instances = (folder / "instances.csv").read_text().splitlines()
    for one, line in zip(known.properties, instances, strict=True):
        assert line == f"{one.onnx},{one.file},300"
        assert (one.metric == "frozen") == ("FROZEN" in (folder / one.file).read_text())
    for one in known.properties[:2] + known.properties[-1:]:
        [case] = vnnlib.compat.transform(vnnlib.parse_query_file(str(folder / one.file)))
        low, high = box(clean[one.sample], one.eps_value)
        expected = np.stack([low.ravel(), high.ravel()], axis=1)
        assert np.array_equal(np.array(case.input_box), expected)
        assert (
            np.all(low >= 0) and np.all(high <= 1) and one.label == report.samples[one.sample].label
        )
        session = open_session((folder / one.onnx).read_bytes(), threads=1)
        draw = np.random.default_rng(0).uniform(low, high, (20, *low.shape)).astype(np.float32)
        for image in draw:
            [scores] = np.asarray(session.run(["logits"], {"images": image[None]})[0])
            fits = [
                np.all(np.array(c.coeff_matrix) @ scores <= np.ravel(c.rhs))
                for c in case.output_constraints
            ]
            assert any(fits) == (scores.argmax() != one.label)


def test_images_without_bounds_are_open_or_broken_and_verified_so(
    converted: Path, artifacts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report.model_validate_json((converted / "report.json").read_bytes())
    flags = [sample.models[0] for sample in report.samples]
    for one in flags:
        [proof], held = one.proofs, one.attacks[0].robust and one.attacks[0].confirmed
        assert proof.margin is None and proof.state == ("open" if held else "broken")
    assert main(["verify", *named(converted, artifacts)]) == 0
    assert "CONFIRMED" in capsys.readouterr().out


def as_competition(image: np.ndarray) -> str:
    lines = [f"(X_{place} {value!r})" for place, value in enumerate(image.ravel().tolist())]
    return "sat\n(" + "\n".join([*lines, "(Y_0 1.0)", "(Y_1 0.0)", "(Y_2 0.0)"]) + ")\n"


def as_standard(image: np.ndarray) -> str:
    values = "\n".join(map(repr, image.ravel().tolist()))
    return f"sat\nX real [1,1,8,8]\n{values}\nY real [1,3]\n1.0\n0.0\n0.0\n"


def test_counterexamples_count_only_where_the_served_model_is_misled(
    converted: Path, artifacts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report.model_validate_json((converted / "report.json").read_bytes())
    model = report.summary.models[0]
    stored = [whole(path) for path in sorted((converted / "shards").rglob("*-full-000000.*"))]
    clean = whole(next((converted / "shards").rglob("clean-*")))["clean"]
    made = stored[0]["adversarial"]
    flags = [sample.models[0] for sample in report.samples]
    misled = [
        i for i, one in enumerate(flags) if one.clean.correct and not one.attacks[0].confirmed
    ]
    fooled = next(i for i in misled if np.any(made[i] != clean[i]))
    held = [i for i, one in enumerate(flags) if one.attacks[0].robust and one.attacks[0].confirmed]
    small, large = (
        f"{sample:06d}-{eps.replace('/', '_')}"
        for sample, eps in ((held[0], EPS[0]), (fooled, EPS[1]))
    )
    name = "elliptical-1"
    answers = {
        f"{name}-{small}": "holds",  # proved
        f"{name}-{held[1]:06d}-1_255-frozen": "unsat",  # of another function
        f"{name}-{large}": "sat",  # true
        f"{name}-{held[1]:06d}-1_255": "violated",  # outside of the box
        f"{name}-{held[1]:06d}-40_255": "sat",  # keeps its label
        f"{name}-{held[0]:06d}-40_255": "sat",  # without a witness
        f"{name}-{misled[0]:06d}-1_255": "timeout",
    }
    rows = [
        f"made,onnx/{name}.onnx,vnnlib/{stem}.vnnlib.gz,0.1,{word},3.2"
        for stem, word in answers.items()
    ]
    (tmp_path / "results.csv").write_text(
        "\n".join(["category,onnx,vnnlib,prepare,result,time", *rows])
    )
    for stem, text in (
        (f"{name}-{large}", as_competition(made[fooled])),
        (f"{name}-{held[1]:06d}-1_255", as_standard(made[held[1]])),
        (f"{name}-{held[1]:06d}-40_255", as_standard(clean[held[1]])),
    ):
        (tmp_path / f"{name}_{stem}.counterexample.gz").write_bytes(gzip.compress(text.encode()))
    words = ["--properties", str(converted / "properties"), "--verifier", "made 1"]
    command = ["replay", *named(converted, artifacts), *words, "--results"]
    assert main([*command, str(tmp_path / "results.csv")]) == 0
    printed = capsys.readouterr().out
    found = Outcomes.model_validate_json((converted / "properties/outcomes.json").read_bytes())
    assert found.verifier == "made 1" and "exact arithmetic" in printed
    reasons = {one.file: (one.reproduced, one.reason) for one in found.witnesses}
    assert [held for held, _ in reasons.values()].count(True) == 1
    for word in ("outside the box", "keeps its label", "no file"):
        assert any(word in reason for _, reason in reasons.values()) and word in printed
    first, second = found.counts
    assert (first.proved, first.frozen, second.proved) == (1, 1, 0)
    assert first.broken + first.proved + first.open == 8 == second.broken + second.open
    assert second.broken == sum(
        not (one.attacks[0].robust and one.attacks[0].confirmed) for one in flags
    )
    assert model.name in printed and not found.contradictions
    # A proof where an attack misleads.
    (tmp_path / "results.csv").write_text(f"onnx/{name}.onnx,vnnlib/{name}-{large}.vnnlib,unsat\n")
    assert main([*command, str(tmp_path / "results.csv")]) == 3
    assert "fgsm within 40/255 misleads" in capsys.readouterr().out


def test_answers_to_other_files_are_refused(
    converted: Path, artifacts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = properties(converted)
    folder = tmp_path / "properties"
    for name in (known.properties[0].file, known.properties[0].onnx):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes((converted / "properties" / name).read_bytes())
    index = {**known.model_dump(mode="json"), "properties": [known.properties[0].model_dump()]}
    (folder / "properties.json").write_text(json.dumps(index))
    (tmp_path / "results.csv").write_text("nothing,unsat")
    words = [
        "--properties",
        str(folder),
        "--verifier",
        "made",
        "--results",
        str(tmp_path / "results.csv"),
    ]
    command = ["replay", *named(converted, artifacts), *words]
    told = []
    for change in ("answer", "report", "file"):
        if change == "report":
            (folder / "properties.json").write_text(json.dumps(index | {"report": sha256(b"")}))
        if change == "file":
            (folder / known.properties[0].file).write_text("; proves nothing")
        assert main(command) == 2
        told.append(capsys.readouterr().err)
    for text, word in zip(told, ("names none", "another report", "was changed"), strict=True):
        assert word in text


def test_small_numbers_are_written_without_exponents() -> None:
    image = np.array([[[1e-7, 1.0]]], np.float32)
    text = property_text(image, 1e-9, 1, 2)
    [case] = vnnlib.compat.transform(vnnlib.parse_query_string(text))
    low, high = box(image, 1e-9)
    assert np.array(case.input_box).tolist() == [[low[0, 0, i], high[0, 0, i]] for i in (0, 1)]
    assert high.max() == 1 and 0 < low.min() < 1e-7
    assert "0e-" not in text and "9e-" not in text

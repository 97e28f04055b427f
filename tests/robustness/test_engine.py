import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data.images import ImageSpec, decode_image, to_input
from data.sets import TextSet
from data.sources import ImageSet, load_inputs
from robustness.evaluation import Cancelled, Progress, evaluate
from robustness.report.lookup import NoSuchSample, picture
from robustness.report.schema import read_report
from robustness.spec import EvaluationSpec, cost
from robustness.target import ImageTarget
from tests.robustness.conftest import contents

MakeTarget = Callable[..., ImageTarget]
MakeImages = Callable[..., ImageSet]
TEXTS = TextSet(names=["a"], labels=None, label_names=None, description="", reader=lambda _: "a")


def make_spec(**fields: object) -> EvaluationSpec:
    pgd = {"name": "pgd", "eps": ["2/255", "4/255"], "steps": 5}
    attacks = [{"name": "fgsm", "eps": ["4/255"]}, pgd]
    return EvaluationSpec.model_validate({"attacks": attacks, "top_k": [1, 2], **fields})


def test_figures_equal_those_of_the_exact_attack(
    make_target: MakeTarget, make_images: MakeImages, tmp_path: Path
) -> None:
    target, images = make_target(2), make_images(70)
    assert images.labels is not None
    attacks = [{"name": "fgsm", "eps": ["4/255"]}, {"name": "pgd", "eps": ["2/255", "4/255"]}]
    report = evaluate(make_spec(attacks=attacks), [target], images, tmp_path)
    inputs = load_inputs(images, target.image_spec)
    logits = target.runtime.predict(inputs)
    rows = np.arange(70)
    lead = logits[rows, images.labels] - logits[rows, 1 - images.labels]
    reach = np.abs(target.runtime.weight[0] - target.runtime.weight[1]).sum()  # pyright: ignore[reportAttributeAccessIssue]  the fixture's runtime
    figures = report.summary.models[0]
    assert figures.clean.top1 == (lead > 0).mean()
    for attack in figures.attacks:
        expected = (lead > attack.eps_value * reach).mean()
        assert attack.robust.top1 == attack.confirmed == expected
        assert attack.transfer_gap == 0
        assert attack.robust.ci[0] <= expected <= attack.robust.ci[1]
        assert attack.robust.top_k == {"1": expected}
    assert list(figures.worst) == ["2/255", "4/255"]
    assert report.summary.top_k == [1]
    assert report.summary.reliable and report.summary.warnings == []
    assert read_report(tmp_path) == report


def test_progress_counts_every_announced_evaluation(
    make_target: MakeTarget, make_images: MakeImages, tmp_path: Path
) -> None:
    seen: list[Progress] = []
    spec = make_spec()
    evaluate(spec, [make_target(3)], make_images(40), tmp_path, on_progress=seen.append)
    assert seen[-1].done == seen[-1].total == cost(spec, 40, [False])
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    again: list[Progress] = []
    evaluate(spec, [make_target(3)], make_images(40), tmp_path, on_progress=again.append)
    assert again[-1].done == seen[-1].done
    assert len(again) < len(seen)


def test_cancelled_evaluation_continues_to_the_same_bytes(
    make_target: MakeTarget, make_images: MakeImages, tmp_path: Path
) -> None:
    spec, whole, parts = make_spec(), tmp_path / "whole", tmp_path / "parts"
    expected = evaluate(spec, [make_target(3)], make_images(70), whole)
    for patience in (1, 7, 20, 33):
        answers = iter([False] * patience)
        with pytest.raises(Cancelled):
            evaluate(
                spec,
                [make_target(3)],
                make_images(70),
                parts,
                should_stop=lambda answers=answers: next(answers, True),
            )
        assert not (parts / "report.json").exists()
    found = evaluate(spec, [make_target(3)], make_images(70), parts)
    assert contents(parts) == contents(whole)
    assert found.summary == expected.summary and found.samples == expected.samples


@pytest.mark.parametrize("damage", ["cut", "flip", "foreign"])
def test_damaged_or_foreign_shard_is_made_again(
    damage: str, make_target: MakeTarget, make_images: MakeImages, tmp_path: Path
) -> None:
    expected = evaluate(make_spec(), [make_target(3)], make_images(40), tmp_path)
    before = contents(tmp_path)
    path = next(p for p in (tmp_path / "shards").rglob("pgd-Linf-4_255*000000*"))
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    else:
        evaluate(make_spec(seed=1), [make_target(3)], make_images(40), tmp_path)
        assert contents(tmp_path) != before
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    left = path.parent / f".left.safetensors.{int(ended.stdout)}-x.tmp"
    left.write_bytes(b"half")
    at_work = path.parent / f".left.safetensors.{os.getpid()}-x.tmp"
    at_work.write_bytes(b"half")
    again = evaluate(make_spec(), [make_target(3)], make_images(40), tmp_path)
    assert not left.exists() and at_work.exists()
    at_work.unlink()
    assert contents(tmp_path) == before
    assert again.summary == expected.summary


def test_curve_of_nearest_images_does_not_depend_on_the_radii_asked_for(
    make_target: MakeTarget, make_images: MakeImages, tmp_path: Path
) -> None:
    curves = []
    for eps in ("1/255", "60/255"):
        attack = {"name": "fab-t", "eps": [eps], "steps": 10}
        spec = EvaluationSpec.model_validate({"attacks": [attack]})
        report = evaluate(spec, [make_target(3)], make_images(12), tmp_path / eps[:2])
        curves.append(report.summary.models[0].minimal)
    assert curves[0] == curves[1] and curves[0][0].median is not None


def test_without_labels_the_report_speaks_of_stability_and_no_gate_asks_for_accuracy(
    make_target: MakeTarget, make_images: MakeImages, tmp_path: Path
) -> None:
    images = make_images(40, num_classes=None)
    spec = make_spec(gate="clean_accuracy >= 0", proposals="bfloat16")
    with pytest.warns(UserWarning, match="'bfloat16' is ignored"):
        report = evaluate(spec, [make_target(3)], images, tmp_path)
    assert report.spec.proposals == "float32"
    gate = report.summary.gate
    assert report.summary.metric == "stability" and report.samples[0].label is None
    assert report.summary.models[0].clean.top1 == 1
    assert gate is not None and not gate.passed
    assert "no labels were given, so this is stability" in gate.reason


def test_two_models_are_compared_pair_by_pair(
    make_target: MakeTarget, make_images: MakeImages, tmp_path: Path
) -> None:
    first = make_target(3)
    second = replace(make_target(3, scale=2.0), version="2", digest="2" * 64)
    report = evaluate(make_spec(), [first, second], make_images(40), tmp_path)
    comparison = report.summary.comparison
    assert comparison is not None
    # Two of one name are told apart by version.
    assert (comparison.first, comparison.second) == ("linear:1", "linear:2")
    pair = comparison.worst["4/255"]
    assert pair.both + pair.only_first + pair.only_second + pair.neither == 40
    # Scaling all logits leaves the exact attack, and so the results, as they are.
    assert pair.difference == 0 and pair.p_value == 1


@pytest.mark.parametrize(("gate", "passed"), [("0.01", True), ("0.99", False)])
def test_gate_compares_the_lower_bound(
    gate: str, passed: bool, make_target: MakeTarget, make_images: MakeImages, tmp_path: Path
) -> None:
    spec = make_spec(gate=f"robust_accuracy >= {gate}")
    images = make_images(64, num_classes=None)
    report = evaluate(spec, [make_target(3, scale=0.1)], images, tmp_path)
    result = report.summary.gate
    assert result is not None
    assert result.passed is passed
    assert result.value == report.summary.models[0].worst["4/255"].ci[0]


@pytest.mark.parametrize("num_classes", [2, 10, 1000])
def test_any_number_of_classes_is_scored(
    num_classes: int, make_target: MakeTarget, make_images: MakeImages, tmp_path: Path
) -> None:
    spec = make_spec(top_k=[1, 5])
    images = make_images(8, num_classes=num_classes)
    report = evaluate(spec, [make_target(num_classes)], images, tmp_path)
    assert report.summary.top_k == ([1, 5] if num_classes > 5 else [1])


def test_global_state_survives_an_evaluation(
    make_target: MakeTarget, make_images: MakeImages, tmp_path: Path
) -> None:
    target = make_target(3)
    target.require_torch_model().train()
    generator, threads = torch.get_rng_state(), torch.get_num_threads()
    evaluate(make_spec(), [target], make_images(8), tmp_path, threads=2)
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.get_num_threads() == threads
    assert all(part.training for part in target.require_torch_model().modules())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, i: ([replace(t, torch_model=None)], i), "need the PyTorch model"),
        (lambda t, i: ([t], i.take([])), "inputs must not be empty"),
        (lambda t, i: ([t, t], i), "another artifact"),
        (lambda t, i: ([t], replace(i, labels=i.labels + 2)), r"labels must be class indices"),
        (lambda t, i: ([], i), "one or two"),
        (lambda t, i: ([t], TEXTS), "'fgsm' works on images, got texts"),
        (
            lambda t, i: ([t, replace(t, digest="b" * 64, labels=["x", "y", "z"])], i),
            "the same labels",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    change: Callable, message: str, make_target: MakeTarget, make_images: MakeImages, tmp_path: Path
) -> None:
    targets, images = change(make_target(3), make_images(8, num_classes=3))
    with pytest.raises(ValueError, match=message):
        evaluate(make_spec(), targets, images, tmp_path)


def test_pictures_show_what_was_scored(
    make_target: MakeTarget, make_images: MakeImages, tmp_path: Path
) -> None:
    target, images = make_target(3), make_images(40)
    evaluate(make_spec(), [target], images, tmp_path)

    def pixels(kind: str, **named: str) -> np.ndarray:
        content = picture(tmp_path, 35, kind, **named)  # pyright: ignore[reportArgumentType]
        return to_input(decode_image(content), ImageSpec(channels=1, height=6, width=6)) * 255

    clean = load_inputs(images.take([35]), target.image_spec)[0] * 255
    np.testing.assert_allclose(pixels("clean"), clean, atol=1e-3)
    assert np.abs(pixels("adversarial") - clean).max() == pytest.approx(4, abs=1e-3)
    small = pixels("adversarial", attack="pgd", eps="2/255")
    assert np.abs(small - clean).max() == pytest.approx(2, abs=1e-3)
    assert set(pixels("perturbation", attack="fgsm").round().ravel()) <= {0.0, 255.0}
    for wrong in ({"eps": "3/255"}, {"eps": "x"}, {"attack": "square"}, {"model": "none"}):
        with pytest.raises(NoSuchSample):
            pixels("adversarial", **wrong)
    with pytest.raises(NoSuchSample, match="index"):
        picture(tmp_path, 40, "clean")
    with pytest.raises(NoSuchSample, match="kind"):
        pixels("original")
    with pytest.raises(NoSuchSample, match="no report"):
        picture(tmp_path / "none", 0, "clean")

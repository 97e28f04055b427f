import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data.images import ImageSpec, decode_image, to_input
from data.sets import TextSet
from data.sources import ImageSet, load_inputs
from robustness.evaluation import Cancelled, Progress, evaluate
from robustness.report.lookup import NoSuchSample, picture
from robustness.report.schema import Report, read_report
from robustness.spec import EvaluationSpec, cost
from robustness.target import Target
from runtimes.manifest import TORCHSCRIPT
from tests.exported import with_file
from tests.robustness.conftest import SIZE, contents, make_images, make_target

Run = Callable[..., Report]
TEXTS = TextSet(names=["a"], labels=None, label_names=None, description="", reader=lambda _: "a")


def make_spec(**fields: object) -> EvaluationSpec:
    pgd = {"name": "pgd", "eps": ["2/255", "4/255"], "steps": 5}
    attacks = [{"name": "fgsm", "eps": ["4/255"]}, pgd]
    return EvaluationSpec.model_validate({"attacks": attacks, "top_k": [1, 2], **fields})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Evaluates the linear model of 3 classes on 40 images of 2, unless others are given."""

    def evaluated(
        *targets: Target,
        images: ImageSet | int = 40,
        spec: EvaluationSpec | None = None,
        folder: str = "",
        **options: Any,
    ) -> Report:
        chosen = make_images(images) if isinstance(images, int) else images
        models = targets or [make_target(3)]
        return evaluate(spec or make_spec(), models, chosen, tmp_path / folder, **options)

    return evaluated


def test_figures_equal_those_of_the_exact_attack(run: Run, tmp_path: Path) -> None:
    target, images = make_target(2), make_images(70)
    assert images.labels is not None
    attacks = [{"name": "fgsm", "eps": ["4/255"]}, {"name": "pgd", "eps": ["2/255", "4/255"]}]
    report = run(target, images=images, spec=make_spec(attacks=attacks))
    inputs = load_inputs(images, target.image_spec)
    logits = target.runtime.predict(inputs)
    rows = np.arange(70)
    lead = logits[rows, images.labels] - logits[rows, 1 - images.labels]
    first, second = next(target.require_torch_model().parameters()).detach().numpy()
    reach = np.abs(first - second).sum()
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


def test_progress_counts_every_announced_evaluation(run: Run) -> None:
    seen: list[Progress] = []
    run(on_progress=seen.append)
    assert seen[-1].done == seen[-1].total == cost(make_spec(), 40, [False])
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    again: list[Progress] = []
    run(on_progress=again.append)
    assert again[-1].done == seen[-1].done
    assert len(again) < len(seen)


def test_cancelled_evaluation_continues_to_the_same_bytes(run: Run, tmp_path: Path) -> None:
    expected = run(images=70, folder="whole")
    for patience in (1, 7, 20, 33):
        answers = iter([False] * patience)
        with pytest.raises(Cancelled):
            run(images=70, folder="parts", should_stop=partial(next, answers, True))
        assert not (tmp_path / "parts" / "report.json").exists()
    found = run(images=70, folder="parts")
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert found.summary == expected.summary and found.samples == expected.samples


@pytest.mark.parametrize("damage", ["cut", "flip", "foreign"])
def test_damaged_or_foreign_shard_is_made_again(damage: str, run: Run, tmp_path: Path) -> None:
    expected = run()
    before = contents(tmp_path)
    path = next(p for p in (tmp_path / "shards").rglob("pgd-Linf-4_255*000000*"))
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    else:
        run(spec=make_spec(seed=1))
        assert contents(tmp_path) != before
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    left = path.parent / f".left.safetensors.{int(ended.stdout)}-x.tmp"
    left.write_bytes(b"half")
    at_work = path.parent / f".left.safetensors.{os.getpid()}-x.tmp"
    at_work.write_bytes(b"half")
    again = run()
    assert not left.exists() and at_work.exists()
    at_work.unlink()
    assert contents(tmp_path) == before
    assert again.summary == expected.summary


def test_curve_of_nearest_images_does_not_depend_on_the_radii_asked_for(run: Run) -> None:
    curves = []
    for eps in ("1/255", "60/255"):
        attack = {"name": "fab-t", "eps": [eps], "steps": 10}
        spec = EvaluationSpec.model_validate({"attacks": [attack]})
        curves.append(run(images=12, spec=spec, folder=eps[:2]).summary.models[0].minimal)
    assert curves[0] == curves[1] and curves[0][0].median is not None


def test_l1_and_l0_have_curves_figures_and_pictures(run: Run, tmp_path: Path) -> None:
    attacks = [
        {"name": "fmn", "norm": "L1", "eps": ["0.3"], "steps": 20},
        {"name": "sigma-zero", "eps": ["2", "36"], "steps": 20},
    ]
    report = run(images=12, spec=EvaluationSpec.model_validate({"attacks": attacks}))
    [model] = report.summary.models
    assert [one.norm for one in model.minimal] == ["L1", "L0"]
    for curve, attack in zip(model.minimal, (model.attacks[0], model.attacks[1]), strict=True):
        nearest = [s.models[0].minimal[curve.norm] for s in report.samples]
        beyond = sum(one is None or one > attack.eps_value for one in nearest)
        assert beyond / 12 == attack.robust.top1 and curve.accuracy[-1] == 0
    assert list(model.worst) == ["0.3", "L0:2", "L0:36"]
    assert [one.description for one in model.attacks][1:] == ["with 2 pixels", "with 36 pixels"]
    page = (tmp_path / "report.html").read_text()
    for words in ("distance (l1)", "distance (l0)", "eps (l1)", "changed pixels"):
        assert words in page
    assert picture(tmp_path, 0, "perturbation", attack="sigma-zero", eps="L0:36")[:4] == b"\x89PNG"


def test_without_labels_the_report_speaks_of_stability_and_no_gate_asks_for_accuracy(
    run: Run,
) -> None:
    spec = make_spec(gate="clean_accuracy >= 0", proposals="bfloat16")
    with pytest.warns(UserWarning, match="'bfloat16' is ignored"):
        report = run(images=make_images(40, num_classes=None), spec=spec)
    assert report.spec.proposals == "float32"
    gate = report.summary.gate
    assert report.summary.metric == "stability" and report.samples[0].label is None
    assert report.summary.models[0].clean.top1 == 1
    assert gate is not None and not gate.passed
    assert "no labels were given, so this is stability" in gate.reason


def test_a_gate_may_stop_its_evaluation_as_soon_as_it_is_decided(run: Run, tmp_path: Path) -> None:
    pgd = [{"name": "pgd", "eps": ["8/255"], "steps": 2}]
    images, target = make_images(320, num_classes=None), make_target(3)
    whole = run(target, images=images, spec=make_spec(attacks=pgd), folder="whole")
    truth = whole.summary.models[0].worst["8/255"].top1
    found = {}
    for name, least in (("held", truth - 0.2), ("failed", truth + 0.2), ("open", truth)):
        spec = make_spec(attacks=pgd, gate=f"robust_accuracy >= {least}", stop="early", seed=3)
        stops = iter([False] * 9)
        with pytest.raises(Cancelled):
            run(
                target,
                images=images,
                spec=spec,
                folder=name,
                should_stop=partial(next, stops, True),
            )
        seen: list[Progress] = []
        found[name] = run(target, images=images, spec=spec, folder=name, on_progress=seen.append)
        assert seen[-1].done == seen[-1].total
        assert (
            run(target, images=images, spec=spec, folder=name + "2").summary == found[name].summary
        )
    for name, report in found.items():
        gate, data = report.summary.gate, report.data
        assert gate is not None and gate.passed is (name == "held") and data.given == 320
        low, high = report.summary.models[0].worst["8/255"].ci
        assert low < truth < high and gate.value == low
        some = f"The gate was decided after {data.samples} of 320 images"
        used = "It took all 320 images" if data.samples == 320 else some
        assert any(line.startswith(used) for line in report.summary.findings)
        assert ("not decided by all 320 inputs" in gate.reason) is (name == "open")
        assert report.samples[0].name != "0.png" and "sequence" in report.definitions["ci"]
    assert found["held"].data.samples <= 128 and found["open"].data.samples == 320


@pytest.mark.parametrize("fields", [{}, {"gate": "robust_accuracy >= 0", "compare_with": "b"}])
def test_stopping_early_needs_a_gate_on_one_model(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="stop must be 'end' with"):
        make_spec(stop="early", **fields)


def test_two_models_are_compared_pair_by_pair(run: Run) -> None:
    first = make_target(3)
    second = replace(make_target(3, scale=2.0), version="2", digest="2" * 64)
    comparison = run(first, second).summary.comparison
    assert comparison is not None
    # Two of one name are told apart by version.
    assert (comparison.first, comparison.second) == ("linear:1", "linear:2")
    pair = comparison.worst["4/255"]
    assert pair.both + pair.only_first + pair.only_second + pair.neither == 40
    # Scaling all logits leaves the exact attack, and so the results, as they are.
    assert pair.difference == 0 and pair.p_value == 1


@pytest.mark.parametrize("num_classes", [2, 10, 1000])
def test_any_number_of_classes_is_scored(num_classes: int, run: Run) -> None:
    images = make_images(8, num_classes=num_classes)
    report = run(make_target(num_classes), images=images, spec=make_spec(top_k=[1, 5]))
    assert report.summary.top_k == ([1, 5] if num_classes > 5 else [1])


def test_global_state_survives_an_evaluation(run: Run) -> None:
    target = make_target(3)
    target.require_torch_model().train()
    generator, threads = torch.get_rng_state(), torch.get_num_threads()
    run(target, images=8, threads=2)
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.get_num_threads() == threads
    assert all(part.training for part in target.require_torch_model().modules())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, i: ([replace(t, torch_model=None)], i), "need a differentiable model"),
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
    change: Callable, message: str, tmp_path: Path
) -> None:
    targets, images = change(make_target(3), make_images(8, num_classes=3))
    with pytest.raises(ValueError, match=message):
        evaluate(make_spec(), targets, images, tmp_path)


def test_pictures_show_what_was_scored(run: Run, tmp_path: Path) -> None:
    run()
    images, spec = make_images(40), ImageSpec(channels=1, height=SIZE, width=SIZE)

    def pixels(kind: str, **named: str) -> np.ndarray:
        content = picture(tmp_path, 35, kind, **named)  # pyright: ignore[reportArgumentType]
        return to_input(decode_image(content), spec) * 255

    clean = load_inputs(images.take([35]), spec)[0] * 255
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


def test_an_evaluation_does_not_open_torchscript(artifact_folder: Path) -> None:
    changed = with_file(artifact_folder, TORCHSCRIPT, b"not a program")
    report = evaluate(make_spec(), [changed], make_images(2), artifact_folder.parent / "report")
    assert report.summary.models[0].samples == 2

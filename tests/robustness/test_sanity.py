"""Every sign of a false figure on a model that has that fault, and none on models without."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import models
from data.sources import open_images
from robustness.attacks.base import Batch
from robustness.evaluation import evaluate
from robustness.progress import Meter
from robustness.report.schema import Summary
from robustness.results import CertificateResult, CorruptionResult
from robustness.sanity.checks import find_warnings, notes
from robustness.sanity.measure import measure
from robustness.sanity.model_checks import ModelOutcome, not_above_chance
from robustness.scoring import combine
from robustness.spec import EvaluationSpec
from robustness.target import Target
from robustness.text_target import open_model
from runtimes.artifact import open_artifact
from tests.robustness import faulty_models as faulty
from tests.robustness.conftest import SIZE, make_images, make_target
from tests.robustness.made_report import made_clean, made_result, made_scoring

Scorer = Callable[..., Summary]


def pgd(*eps: str) -> list[dict]:
    return [{"name": "pgd", "eps": list(eps)}]


PGD = pgd("4/255")
SHIPPED = Path(__file__).parents[2] / "artifacts"


@pytest.fixture
def scorer(tmp_path: Path) -> Scorer:
    def run(
        target: Target, attacks: list[dict] = PGD, count: int = 64, num_classes: int | None = None
    ) -> Summary:
        spec = EvaluationSpec.model_validate({"attacks": attacks, "gate": "robust_accuracy >= 0"})
        images = make_images(count, num_classes=num_classes)
        return evaluate(spec, [target], images, tmp_path).summary

    return run


def elliptical(**options: str) -> nn.Module:
    return models.build(
        "deit_tiny_elliptical", img_size=SIZE, patch_size=3, in_chans=1, num_classes=4,
        embed_dim=16, num_heads=2, depth=2, mlp_ratio=2.0, **options,
    ).eval()  # fmt: skip


def codes(summary: Summary) -> set[str]:
    assert summary.reliable is (not summary.warnings)
    assert summary.gate is not None and summary.gate.passed is summary.reliable
    return {warning.code for warning in summary.warnings}


@pytest.mark.parametrize("num_classes", [2, 10])
def test_an_honest_model_raises_no_warning(num_classes: int, scorer: Scorer) -> None:
    attacks = [
        {"name": "fgsm", "eps": ["1/255", "4/255"]},
        {"name": "pgd", "eps": ["1/255", "4/255", "0.6", "1"]},
        {"name": "fab-t", "eps": ["4/255"], "norm": "L2", "steps": 10},
        {"name": "square", "eps": ["1/255"], "queries": 50},
    ]
    assert codes(scorer(make_target(num_classes), attacks)) == set()


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (None, []),
        (faulty.blurred_gradient, ["incomplete_gradients"]),
        (faulty.sparse_gradient, ["incomplete_gradients"]),
        (faulty.clipped, ["dead_zones"]),
    ],
)
def test_what_a_shipped_model_raises_alone_and_behind_a_wrapper(
    before: faulty.Change | None, expected: list[str], tmp_path: Path
) -> None:
    found = open_model(open_artifact(SHIPPED / "fashion-elliptical-adv"), threads=1)
    images = open_images(SHIPPED / "samples" / "fashion-mnist", label_names=list(found.labels))
    spec = EvaluationSpec.model_validate({"attacks": [{"name": "pgd", "eps": ["0.1"], "steps": 5}]})
    chosen = images.take(range(0, len(images), 20))
    if before is not None:
        module = faulty.Changed(found.require_torch_model(), before=before).eval()
        found = faulty.put(found, module)
    summary = evaluate(spec, [found], chosen, tmp_path).summary
    assert [warning.code for warning in summary.warnings] == expected


class Fault(NamedTuple):
    """A change of the linear model, or another in its place, and the warnings that it raises."""

    name: str
    expected: str  # all of them
    before: faulty.Change | None = None
    after: faulty.Change | None = None
    at: str = "both"  # see `faulty.put`
    model: Callable[[nn.Module], nn.Module] | None = None
    attacks: list[dict] = PGD
    more: str = ""  # what it may raise, too
    said: tuple[str, ...] = ()  # words of them
    classes: int = 4
    samples: int = 64


def large(logits: Tensor) -> Tensor:
    return 1000 * logits


def jagged(images: Tensor) -> Tensor:
    return images + 1e-2 * torch.sin(1e5 * images)


def standardised(images: Tensor) -> Tensor:
    return 0.5 + 0.1 * nn.functional.batch_norm(images, None, None, training=True)


GREY = ("the same grey one",)
SQUARE = {"name": "square", "eps": ["4/255"], "queries": 50}
APGD_T = {"name": "apgd-t", "eps": ["4/255"], "steps": 10}
L2 = [{"name": "fab-t", "norm": "L2", "eps": ["3.7"], "steps": 2}]
L1 = [{"name": "fmn", "norm": "L1", "eps": ["32"], "steps": 2}]
L0 = [{"name": "sigma-zero", "eps": ["64"], "steps": 2}]
SHORT = [{"name": "fgsm", "eps": ["4/255"]}, {**PGD[0], "steps": 3}]
AUTO = [{"name": "autoattack", "eps": ["4/255"]}]
MASKED, STUCK = (
    "black_box_beats_white_box shattered_gradients",
    "zero_gradients impossible_accuracy",
)
FAULTS = (
    Fault("noise", "randomised", after=faulty.noise),
    Fault("noise in the PyTorch model", "randomised", after=faulty.noise, at="torch"),
    Fault("softmax", "probabilities", after=lambda logits: logits.softmax(1)),
    Fault("no gradient", "zero_gradients", after=faulty.closed),
    Fault("no gradient for queries", "", after=faulty.closed, attacks=[SQUARE]),
    Fault("hidden gradient for queries", "", after=Tensor.detach, attacks=[SQUARE]),
    Fault("inner optimisation", "optimises_inside", before=faulty.denoised),
    Fault("batch norm", "depends_on_batch", before=standardised),
    Fault("straight through", "quantised_inputs", before=faulty.straight_through),
    Fault("rounding", "quantised_inputs zero_gradients", before=faulty.rounded),
    Fault(
        "rounding as served",
        "transfer_gap copy_differs quantised_inputs",
        before=lambda images: (images * 8).round() / 8,
        at="served",
    ),
    Fault("reversed gradient", "shattered_gradients", before=faulty.reversed_gradient),
    Fault("median filter", "", before=faulty.median_filtered),
    Fault("jagged", "shattered_gradients", jagged, more="more_steps_weaker transfer_gap"),
    Fault("large logits", "saturated_logits zero_gradients", after=large),
    Fault("large logits for the margin", "", after=large, attacks=[*PGD, APGD_T]),
    Fault("constant", "constant_output zero_gradients", after=lambda logits: 0 * logits + 1),
    Fault("not finite", "non_finite_logits", after=faulty.overflowing),
    Fault("not finite as served", "non_finite_logits", after=faulty.overflowing, at="served"),
    Fault("masked", MASKED, before=faulty.reversed_gradient, attacks=[*PGD, SQUARE], samples=16),
    Fault("masked from one", MASKED, faulty.reversed_gradient, attacks=AUTO, classes=3, samples=16),
    Fault("half", STUCK, after=faulty.closed, attacks=pgd("0.6"), said=GREY),
    Fault("all", STUCK, after=faulty.closed, attacks=pgd("1"), said=("into any other",)),
    Fault("half in l2", STUCK, after=faulty.closed, attacks=L2, said=GREY),
    Fault("half in l1", STUCK, after=faulty.closed, attacks=L1, said=GREY),
    Fault("all in l0", STUCK, after=faulty.closed, attacks=L0, said=("into any other",)),
    Fault(
        "two radii",
        "zero_gradients accuracy_does_not_fall",
        after=faulty.closed,
        attacks=[{"name": "fgsm", "eps": ["0.15", "0.3"]}],
        said=("may be stuck",),
    ),
    Fault("none, but a short attack", "", attacks=SHORT),
    Fault(
        "hidden border",
        "more_steps_weaker",
        after=faulty.hidden_border,
        attacks=[{"name": name, "eps": ["8/255"]} for name in ("fgsm", "pgd")],
        said=("eight steps of an attack get less far than one", "one step (FGSM) fools"),
        classes=2,
    ),
    Fault(
        "random metric",
        "randomised",
        model=lambda _: elliptical(estimator="random"),
        samples=16,
        said=("draws the metric of its attention at random",),
    ),
    Fault(
        "batch norm in training",
        "depends_on_batch",
        model=lambda inner: nn.Sequential(nn.BatchNorm2d(1, momentum=0.0), inner),
        more="copy_differs transfer_gap",
    ),
    Fault(
        "hiding",
        "accuracy_rises_with_eps transfer_gap",
        model=faulty.Hiding,
        at="torch",
        attacks=pgd("0.05", "0.3"),
        classes=3,
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_model_with_a_fault_raises_its_warnings_and_no_other(
    fault: Fault, scorer: Scorer
) -> None:
    target = make_target(fault.classes)
    make = fault.model or partial(faulty.Changed, before=fault.before, after=fault.after)
    module = make(target.require_torch_model())
    summary = scorer(faulty.put(target, module, fault.at), fault.attacks, count=fault.samples)
    expected = set(fault.expected.split())
    assert expected <= codes(summary) <= expected | set(fault.more.split())
    messages = " ".join(warning.message for warning in summary.warnings)
    assert all(words in messages for words in fault.said)
    attack = summary.models[0].attacks[0]
    assert attack.transfer_gap == pytest.approx(attack.confirmed - attack.robust.top1)


def test_one_class_for_everything_is_reported(scorer: Scorer) -> None:
    target, one = make_target(4), torch.tensor([9.0, 0, 0, 0])
    linear = target.require_torch_model()
    module = faulty.Changed(linear, after=lambda logits: logits * 0.1 + one)
    summary = scorer(faulty.put(target, module), count=40, num_classes=4)
    assert codes(summary) == {"constant_output"}
    assert "puts all 40 images into one class" in summary.warnings[0].message


@pytest.mark.parametrize(
    ("right", "samples", "num_classes", "compared", "warned"),
    [
        (6, 64, 10, False, "Only 6 of 64 images .* among 10 classes gives .*p = 0.63"),
        (6, 64, 10, True, None),  # a poor model of these very classes
        (11, 64, 10, False, "p = 0.052"),
        (12, 64, 10, False, None),
        (0, 2, 10, False, "Only 0 of 2 images"),
        (1, 1, 2, False, None),
        (3, 3, 2, False, None),
        (20, 20, 10, False, None),  # of one class
        (24, 40, 2, False, "p = 0.13"),
        (26, 40, 2, False, None),
    ],
)
def test_guessing_is_reported_where_classes_were_not_compared(
    right: int, samples: int, num_classes: int, compared: bool, warned: str | None
) -> None:
    label = np.zeros(samples, np.int64)
    clean = made_clean(label, rank=(np.arange(samples) >= right).astype(np.int64))
    result = made_result(make_target(num_classes), clean)
    found = [*not_above_chance(ModelOutcome(result=result, compared=compared))]
    assert len(found) == (warned is not None)
    assert warned is None or re.search(warned, found[0])


def test_what_noise_cannot_tell_is_remarked_upon() -> None:
    attacks = [{"name": "smoothing", "samples": 1000}, {"name": "corruptions", "names": ["fog"]}]
    spec = EvaluationSpec.model_validate({"attacks": attacks})
    label = np.zeros(3, np.int64)
    certified = CertificateResult(index=label, radius=np.zeros(3))
    corrupted = [CorruptionResult(rank=label, index=label)] * 5
    result = made_result(make_target(4), made_clean(label), certified, *corrupted, spec=spec)
    smoothing, corruptions = notes([result])
    assert "1,000 noisy copies" in smoothing and "above 2.46 sigma" in smoothing
    assert "cannot be compared with published figures" in corruptions


def test_a_result_that_does_better_under_attack_is_reported() -> None:
    """Made up: no evaluation gives such a result, unless files of two are mixed up."""
    zeros = np.zeros(40, np.int64)
    better = made_clean(zeros, index=np.arange(40) % 2, torch_index=np.arange(40) % 2)
    attacked = combine(better, [made_scoring(zeros)], ["plain"])
    result = made_result(make_target(4), replace(better, rank=zeros + 1), attacked)
    found = find_warnings(result, compared=True)
    assert [warning.code for warning in found] == ["robust_above_clean"]


@pytest.mark.parametrize("held", [True, False])
def test_images_that_hold_at_half_the_range_are_reported_where_nothing_else_is(held: bool) -> None:
    """Made up: what this stands for is a fault that no other sign knows."""
    target, label = make_target(4), np.arange(40) % 4
    inputs = np.random.default_rng(0).random((40, 1, SIZE, SIZE), np.float32)
    asked = measure(target, Batch(inputs=inputs, labels=label), seed=0, meter=Meter(1000))
    assert not asked.holds_at_large_eps.any()
    clean = made_clean(label)
    attacked = combine(clean, [made_scoring(label * 0 + 1)], ["plain"])
    large = np.full_like(asked.holds_at_large_eps, held)
    asked = replace(asked, holds_at_large_eps=large)
    found = find_warnings(replace(made_result(target, clean, attacked), diagnostics=asked))
    assert {warning.code for warning in found} == ({"impossible_accuracy"} if held else set())


def test_gradients_through_m_that_find_more_are_remarked_upon() -> None:
    """A note with figures and no warning: the worse of both is what counts already."""
    clean = made_clean(np.zeros(10, np.int64))
    ranks = [(np.arange(10) < fooled).astype(np.int64) for fooled in (3, 5)]
    attacked = combine(clean, [*map(made_scoring, ranks)], ["stopped", "full"])
    result = made_result(faulty.put(make_target(4), elliptical()), clean, attacked)
    assert find_warnings(result) == []
    found = [note for note in notes([result]) if "through m" in note]
    assert len(found) == 1 and "7 of 10 hold" in found[0] and "through m 5" in found[0]

"""Every sign of a false figure on a model that has that fault, and none on models without."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import models
from data.sources import ImageSet, open_images
from robustness.attacks.base import Batch
from robustness.evaluation import evaluate
from robustness.progress import Meter
from robustness.report.schema import Summary
from robustness.sanity.checks import find_warnings, notes
from robustness.sanity.measure import measure
from robustness.scoring import (
    CertificateResult,
    CleanResult,
    CorruptionResult,
    ModelResult,
    Scoring,
    ShardResult,
    combine,
)
from robustness.spec import EvaluationSpec
from robustness.target import Target
from runtimes.artifact import open_artifact
from tests.robustness import faulty_models as faulty
from tests.robustness.conftest import SIZE, Artifacts

MakeTarget = Callable[..., Target]
MakeImages = Callable[..., ImageSet]
Scorer = Callable[..., Summary]

PGD = [{"name": "pgd", "eps": ["4/255"]}]
SHIPPED = Path(__file__).parents[2] / "artifacts"


@pytest.fixture
def scorer(make_images: MakeImages, tmp_path: Path) -> Scorer:
    folders = (tmp_path / str(i) for i in itertools.count())  # one digest stands for all faults

    def run(target: Target, attacks: list[dict] = PGD, *, count: int = 64) -> Summary:
        spec = EvaluationSpec.model_validate({"attacks": attacks, "gate": "robust_accuracy >= 0"})
        images = make_images(count, num_classes=None)
        return evaluate(spec, [target], images, next(folders)).summary

    return run


def elliptical(**options: str) -> nn.Module:
    return models.build(
        "deit_tiny_elliptical", img_size=SIZE, patch_size=3, in_chans=1, num_classes=4,
        embed_dim=16, num_heads=2, depth=2, mlp_ratio=2.0, **options,
    ).eval()  # fmt: skip


def made_clean(label: np.ndarray, **changes: np.ndarray) -> CleanResult:
    """Inputs that a made-up model gets right without any attack."""
    no = np.zeros(len(label), bool)
    right = CleanResult(
        label=label, rank=label * 0, index=label, probability=np.full(len(label), 0.5),
        torch_index=label, finite=~no, blind=no, normalised=no, unsteady=no,
    )  # fmt: skip
    return replace(right, **changes)


def made_scoring(rank: np.ndarray) -> Scoring:
    return Scoring(
        torch_rank=rank, served_rank=rank, eight_bit_rank=rank, index=rank, margin=0.5 - rank,
        distance=rank * 0.0, finite=np.ones(len(rank), bool),
    )  # fmt: skip


def codes(summary: Summary) -> set[str]:
    assert summary.reliable is (not summary.warnings)
    assert summary.gate is not None and summary.gate.passed is summary.reliable
    return {warning.code for warning in summary.warnings}


@pytest.mark.parametrize("num_classes", [2, 4, 10])
def test_an_honest_model_raises_no_warning(
    num_classes: int, make_target: MakeTarget, scorer: Scorer
) -> None:
    attacks = [
        {"name": "fgsm", "eps": ["1/255", "4/255"]},
        {"name": "pgd", "eps": ["1/255", "4/255", "0.6", "1"]},
        {"name": "fab-t", "eps": ["4/255"], "norm": "L2", "steps": 10},
        {"name": "square", "eps": ["1/255"], "queries": 50},
    ]
    assert codes(scorer(make_target(num_classes), attacks)) == set()


def test_small_trained_transformers_raise_no_warning(artifacts: Artifacts, tmp_path: Path) -> None:
    found = [open_artifact(artifacts.dot), open_artifact(artifacts.elliptical)]
    images = open_images(artifacts.images, label_names=list(found[0].labels))
    spec = EvaluationSpec.model_validate(
        {"attacks": [{"name": name, "eps": ["2/255", "16/255"]} for name in ("fgsm", "pgd")]}
    )
    assert evaluate(spec, found, images, tmp_path).summary.warnings == []


def test_shipped_models_raise_no_warning(tmp_path: Path) -> None:
    found = open_artifact(SHIPPED / "fashion-elliptical-adv")
    images = open_images(SHIPPED / "samples" / "fashion-mnist", label_names=list(found.labels))
    spec = EvaluationSpec.model_validate({"attacks": [{"name": "pgd", "eps": ["0.1"], "steps": 5}]})
    chosen = images.take(range(0, len(images), 20))
    assert evaluate(spec, [found], chosen, tmp_path).summary.warnings == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, faulty.noise, {"randomised"}),
        (None, lambda logits: logits.softmax(1), {"probabilities"}),
        (None, lambda logits: logits.detach() + 0 * logits, {"zero_gradients"}),
        (faulty.denoised, None, {"optimises_inside"}),
        (faulty.standardised, None, {"depends_on_batch"}),
        (faulty.straight_through, None, {"quantised_inputs"}),
        (faulty.rounded, None, {"quantised_inputs", "zero_gradients"}),
        (faulty.reversed_gradient, None, {"shattered_gradients"}),
        (None, lambda logits: 1000 * logits, {"saturated_logits", "zero_gradients"}),
        (None, lambda logits: 0 * logits + 1, {"constant_output", "zero_gradients"}),
    ],
    ids=[
        "noise", "softmax", "no gradient", "inner optimisation", "batch norm", "straight through",
        "rounding", "reversed gradient", "large logits", "constant",
    ],
)  # fmt: skip
def test_a_model_with_a_fault_raises_its_warning_and_no_other(
    before: faulty.Change | None,
    after: faulty.Change | None,
    expected: set[str],
    make_target: MakeTarget,
    scorer: Scorer,
) -> None:
    assert codes(scorer(faulty.changed(make_target(4), before=before, after=after))) == expected


def test_a_jagged_function_is_reported(make_target: MakeTarget, scorer: Scorer) -> None:
    found = codes(scorer(faulty.changed(make_target(4), before=faulty.jagged)))
    assert "shattered_gradients" in found
    assert found <= {"shattered_gradients", "more_steps_weaker", "transfer_gap"}


def test_a_model_that_hides_its_gradients_is_refused_to_attacks_that_need_them(
    make_target: MakeTarget, scorer: Scorer
) -> None:
    class Closed(faulty.Changed):
        @torch.no_grad()
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images)

    torch_model = Closed(make_target(4).require_torch_model(), before=None, after=None)
    target = faulty.served(make_target(4), torch_model)
    with pytest.raises(ValueError, match="logits have no gradient"):
        scorer(target)
    assert codes(scorer(target, [{"name": "square", "eps": ["4/255"], "queries": 50}])) == set()


def test_noise_in_the_twin_alone_is_reported(make_target: MakeTarget, scorer: Scorer) -> None:
    target = make_target(4)
    noisy = faulty.Changed(target.require_torch_model(), before=None, after=faulty.noise)
    assert codes(scorer(replace(target, torch_model=noisy))) == {"randomised"}


def test_attention_with_a_random_metric_is_reported(
    make_target: MakeTarget, scorer: Scorer
) -> None:
    summary = scorer(faulty.served(make_target(4), elliptical(estimator="random")), count=16)
    assert "randomised" in codes(summary)
    assert "draws the metric of its attention at random" in summary.warnings[0].message


def test_batch_norm_served_in_training_mode_is_reported(
    make_target: MakeTarget, scorer: Scorer
) -> None:
    target = make_target(4)
    module = nn.Sequential(nn.BatchNorm2d(1, momentum=0.0), target.require_torch_model())
    found = codes(scorer(faulty.served(target, module)))
    assert "depends_on_batch" in found
    assert found <= {"depends_on_batch", "twin_differs", "transfer_gap"}


def test_scale_is_no_matter_for_attacks_on_the_margin(
    make_target: MakeTarget, scorer: Scorer
) -> None:
    large = faulty.changed(make_target(4), after=lambda logits: 1000 * logits)
    attacks = [*PGD, {"name": "apgd-t", "eps": ["4/255"], "steps": 10}]
    assert codes(scorer(large, attacks)) == set()


def test_one_class_for_everything_is_reported(
    make_target: MakeTarget, make_images: MakeImages, tmp_path: Path
) -> None:
    one = torch.tensor([9.0, 0, 0, 0])
    target = faulty.changed(make_target(4), after=lambda logits: logits * 0.1 + one)
    spec = EvaluationSpec.model_validate({"attacks": PGD})
    summary = evaluate(spec, [target], make_images(40, num_classes=4), tmp_path).summary
    assert {warning.code for warning in summary.warnings} == {"constant_output"}
    assert "puts all 40 images into one class" in summary.warnings[0].message


def test_logits_that_are_not_finite_are_reported(make_target: MakeTarget, scorer: Scorer) -> None:
    def overflow(logits: Tensor) -> Tensor:
        return torch.where(logits[:, :1] > 0.5, torch.nan, logits)

    target = make_target(3)
    assert codes(scorer(faulty.changed(target, after=overflow))) == {"non_finite_logits"}
    only_served = faulty.Changed(target.require_torch_model(), before=None, after=overflow)
    runtime = faulty.ModuleRuntime(only_served)
    assert codes(scorer(replace(target, runtime=runtime))) == {"non_finite_logits"}


def test_saturated_model_counts_as_robust_and_is_reported(
    make_target: MakeTarget, scorer: Scorer
) -> None:
    summary = scorer(make_target(3, scale=1e5), [{"name": "fgsm", "eps": ["4/255"]}])
    assert summary.models[0].attacks[0].robust.top1 > 0.5
    assert codes(summary) == {"saturated_logits", "zero_gradients"}


def test_gradients_that_hide_the_border_make_more_steps_weaker(
    make_target: MakeTarget, scorer: Scorer
) -> None:
    target = faulty.changed(make_target(2), after=faulty.hidden_border)
    attacks = [{"name": name, "eps": ["8/255"]} for name in ("fgsm", "pgd")]
    summary = scorer(target, attacks)
    assert codes(summary) == {"more_steps_weaker"}
    messages = " ".join(warning.message for warning in summary.warnings)
    assert "eight steps of an attack get less far than one" in messages
    assert "one step (FGSM) fools" in messages


@pytest.mark.parametrize(
    "attacks",
    [
        [*PGD, {"name": "square", "eps": ["4/255"], "queries": 200}],
        [{"name": "autoattack", "eps": ["4/255"]}],
    ],
)
def test_a_black_box_that_beats_gradients_is_reported(
    attacks: list[dict], make_target: MakeTarget, scorer: Scorer
) -> None:
    target = faulty.changed(make_target(3), before=faulty.reversed_gradient)
    found = codes(scorer(target, attacks, count=16))
    assert found == {"black_box_beats_white_box", "shattered_gradients"}


def test_served_model_that_hides_behind_rounding_shows_a_transfer_gap(
    make_target: MakeTarget, scorer: Scorer
) -> None:
    target = make_target(3)
    coarse = faulty.Changed(
        target.require_torch_model(), before=lambda images: (images * 8).round() / 8, after=None
    )
    summary = scorer(replace(target, runtime=faulty.ModuleRuntime(coarse)))
    attack = summary.models[0].attacks[0]
    assert attack.transfer_gap == pytest.approx(attack.confirmed - attack.robust.top1)
    assert codes(summary) == {"transfer_gap", "twin_differs", "quantised_inputs"}


def test_accuracy_that_rises_with_eps_is_reported(make_target: MakeTarget, scorer: Scorer) -> None:
    """Far from gray the model answers class 0 for any input, and gives no gradient."""
    target = make_target(3)

    class Hiding(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, images: Tensor) -> Tensor:
            far = (images - 0.5).abs().amax((1, 2, 3)) > 0.3
            hidden = 0 * images.sum((1, 2, 3))[:, None] + torch.tensor([9.0, 0, 0])
            return torch.where(far[:, None], hidden, self.inner(images))

    torch_model = Hiding(target.require_torch_model())
    found = codes(
        scorer(replace(target, torch_model=torch_model), [{"name": "pgd", "eps": ["0.05", "0.3"]}])
    )
    assert "accuracy_rises_with_eps" in found


@pytest.mark.parametrize(
    ("attack", "code", "why"),
    [
        ({"name": "pgd", "eps": ["0.6"]}, "impossible_accuracy", "the same grey one"),
        ({"name": "pgd", "eps": ["1"]}, "impossible_accuracy", "into any other"),
        (
            {"name": "fab-t", "norm": "L2", "eps": ["3.7"], "steps": 2},
            "impossible_accuracy",
            "the same grey one",
        ),
        ({"name": "fgsm", "eps": ["0.15", "0.3"]}, "accuracy_does_not_fall", "may be stuck"),
        ({"name": "square", "eps": ["4/255"], "queries": 50}, None, ""),
    ],
    ids=["half", "all", "l2", "stays", "queries do not mind"],
)
def test_accuracy_that_cannot_be_is_reported(
    attack: dict, code: str | None, why: str, make_target: MakeTarget, scorer: Scorer
) -> None:
    stuck = faulty.changed(make_target(3), after=lambda logits: logits.detach() + 0 * logits)
    summary = scorer(stuck, [attack])
    assert codes(summary) == (set() if code is None else {"zero_gradients", code})
    assert code is None or why in summary.warnings[-1].message


def test_what_noise_cannot_tell_is_remarked_upon(make_target: MakeTarget) -> None:
    attacks = [{"name": "smoothing", "samples": 1000}, {"name": "corruptions", "names": ["fog"]}]
    spec = EvaluationSpec.model_validate({"attacks": attacks})
    label = np.zeros(3, np.int64)
    cells: list[ShardResult] = [
        CertificateResult(index=label, radius=np.zeros(3)),
        *[CorruptionResult(rank=label, index=label)] * 5,
    ]
    clean = made_clean(label)
    result = ModelResult(target=make_target(4), clean=clean, cells=cells, inputs_digest="")
    smoothing, corruptions = notes(spec, [result])
    assert "1,000 noisy copies" in smoothing and "above 2.46 sigma" in smoothing
    assert "no published figure" in corruptions


def test_too_short_an_attack_is_remarked_upon_but_no_fault_of_the_model(
    make_target: MakeTarget, scorer: Scorer
) -> None:
    attacks = [{"name": "fgsm", "eps": ["4/255"]}, {**PGD[0], "steps": 3}]
    assert codes(scorer(make_target(4), attacks)) == set()


def test_a_result_that_does_better_under_attack_is_reported(make_target: MakeTarget) -> None:
    """Made up: no evaluation gives such a result, unless files of two are mixed up."""
    zeros = np.zeros(40, np.int64)
    better = made_clean(zeros, index=np.arange(40) % 2, torch_index=np.arange(40) % 2)
    cells: list[ShardResult] = [combine(better, [made_scoring(zeros)], ["plain"])]
    clean = replace(better, rank=zeros + 1)
    result = ModelResult(target=make_target(4), clean=clean, cells=cells, inputs_digest="")
    spec = EvaluationSpec.model_validate({"attacks": PGD})
    assert [warning.code for warning in find_warnings(spec, result)] == ["robust_above_clean"]


@pytest.mark.parametrize("held", [True, False])
def test_images_that_hold_at_half_the_range_are_reported_where_nothing_else_is(
    held: bool, make_target: MakeTarget
) -> None:
    """Made up: what this stands for is a fault that no other sign knows."""
    target, label = make_target(4), np.arange(40) % 4
    inputs = np.random.default_rng(0).random((40, 1, SIZE, SIZE), np.float32)
    asked = measure(target, Batch(inputs=inputs, labels=label), seed=0, meter=Meter(1000))
    assert not asked.holds_at_large_eps.any()
    clean = made_clean(label)
    result = ModelResult(
        target=target,
        clean=clean,
        cells=[combine(clean, [made_scoring(label * 0 + 1)], ["plain"])],
        inputs_digest="",
        diagnostics=replace(asked, holds_at_large_eps=np.full_like(asked.holds_at_large_eps, held)),
    )
    found = find_warnings(EvaluationSpec.model_validate({"attacks": PGD}), result)
    assert {warning.code for warning in found} == ({"impossible_accuracy"} if held else set())


def test_gradients_through_m_that_find_more_are_remarked_upon(make_target: MakeTarget) -> None:
    """A note with figures and no warning: the worse of both is what counts already."""
    clean = made_clean(np.zeros(10, np.int64))
    ranks = [(np.arange(10) < fooled).astype(np.int64) for fooled in (3, 5)]
    cells: list[ShardResult] = [combine(clean, [*map(made_scoring, ranks)], ["stopped", "full"])]
    target = faulty.served(make_target(4), elliptical())
    result = ModelResult(target=target, clean=clean, cells=cells, inputs_digest="")
    spec = EvaluationSpec.model_validate({"attacks": PGD})
    assert find_warnings(spec, result) == []
    found = [note for note in notes(spec, [result]) if "through m" in note]
    assert len(found) == 1 and "7 of 10 hold" in found[0] and "through m 5" in found[0]

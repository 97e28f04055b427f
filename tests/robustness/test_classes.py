"""Two classes or a thousand: every attack on images runs, or says why it cannot."""

from collections.abc import Callable
from pathlib import Path

import pytest

from data.sources import ImageSet
from robustness.attacks.base import options
from robustness.evaluation import evaluate
from robustness.spec import ATTACKS, EvaluationSpec
from robustness.target import Target

SHORT = {"steps": 3, "queries": 20, "samples": 10, "names": ["contrast"], "severities": [3]}
MakeTarget = Callable[..., Target]
MakeImages = Callable[..., ImageSet]


def short_attacks(num_classes: int) -> list[dict[str, object]]:
    """Every attack on images with little to do; AutoAttack, which cannot be shortened, apart."""
    attacks: list[dict[str, object]] = []
    for name, kind in ATTACKS.items():
        if (
            kind.info.input == "text"
            or name in ("autoattack", "torchattacks")
            or num_classes < kind.info.min_classes
        ):
            continue
        known = {option.name for option in options(kind)}
        fields = {key: value for key, value in SHORT.items() if key in known}
        attacks += [
            {"name": name, "norm": norm, "eps": ["0.02", "0.1"], **fields}
            for norm in kind.info.norms
        ] or [{"name": name, **fields}]
    return attacks


@pytest.mark.parametrize(
    ("num_classes", "top_k"), [(2, [1, 5]), (3, [1]), (10, [1]), (1000, [1, 5])]
)
def test_every_attack_runs_with_so_many_classes(
    num_classes: int,
    top_k: list[int],
    make_target: MakeTarget,
    make_images: MakeImages,
    tmp_path: Path,
) -> None:
    spec = EvaluationSpec.model_validate({"attacks": short_attacks(num_classes), "top_k": top_k})
    images = make_images(6, num_classes=num_classes)
    report = evaluate(spec, [make_target(num_classes)], images, tmp_path)
    [figures] = report.summary.models
    assert report.summary.top_k == [k for k in top_k if k < num_classes]
    assert all(attack.robust.top1 <= figures.clean.top1 for attack in figures.attacks)
    assert {attack.name for attack in figures.attacks} | {"corruptions", "smoothing"} == {
        attack.name for attack in spec.attacks
    }


@pytest.mark.parametrize("num_classes", [2, 3])
def test_apgd_t_says_that_it_needs_four_classes(
    num_classes: int, make_target: MakeTarget, make_images: MakeImages, tmp_path: Path
) -> None:
    spec = EvaluationSpec.model_validate({"attacks": [{"name": "apgd-t", "eps": ["0.1"]}]})
    with pytest.raises(ValueError, match="'apgd-t' needs at least 4 classes"):
        evaluate(
            spec,
            [make_target(num_classes)],
            make_images(4, num_classes=num_classes),
            tmp_path,
        )


@pytest.mark.parametrize(("num_classes", "parts"), [(2, 3), (3, 3), (4, 4)])
def test_autoattack_leaves_out_what_needs_more_classes_and_says_so(
    num_classes: int, parts: int, make_target: MakeTarget, make_images: MakeImages, tmp_path: Path
) -> None:
    spec = EvaluationSpec.model_validate({"attacks": [{"name": "autoattack", "eps": ["0.5"]}]})
    images = make_images(5, num_classes=num_classes)
    report = evaluate(spec, [make_target(num_classes)], images, tmp_path)
    assert len(spec.attacks[0].parts(num_classes)) == parts
    assert any("without APGD-T" in note for note in report.notes) == (num_classes < 4)
    assert report.summary.models[0].worst["0.5"].top1 == 0

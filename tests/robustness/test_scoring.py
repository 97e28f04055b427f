"""Ranks, margins and flags of one input, and the worst case over attacks and models."""

import numpy as np
import pytest

from data.images import ImageSpec
from data.sources import load_inputs
from robustness.attacks.base import Batch, BoundsError
from robustness.attacks.pgd import FGSM
from robustness.logits import label_rank, margin
from robustness.progress import Meter
from robustness.report.sentences import findings
from robustness.report.summary import model_figures
from robustness.results import ModelResult
from robustness.scoring import ask, combine, score
from robustness.target import Target, in_8bit
from tests.robustness.conftest import make_images, make_target
from tests.robustness.made_report import made_clean, made_result, made_scoring


def result(target: Target, torch_model: list[int], served: list[int]) -> ModelResult:
    """Four images of class 0 that are right unattacked, with these ranks under attack."""
    clean, ranks = made_clean(np.zeros(4, np.int64)), np.array(served)
    scored = made_scoring(ranks, torch_rank=np.array(torch_model))
    return made_result(target, clean, combine(clean, [scored], ["plain"]))


def test_either_judge_can_make_an_image_fall() -> None:
    found = result(make_target(3), torch_model=[0, 1, 0, 1], served=[0, 0, 1, 1])
    assert found.worst_ranks["4/255"].tolist() == [0, 1, 1, 1]
    largest = found.largest_rank
    assert largest is not None and largest.tolist() == [0, 1, 1, 1]
    figures = model_figures(found)
    assert figures.attacks[0].robust.top1 == figures.attacks[0].confirmed == 0.5
    assert figures.worst["4/255"].top1 == 0.25


@pytest.mark.parametrize(
    ("torch_model", "served", "words"),
    [
        ([0, 0, 1, 1], [0, 0, 1, 1], "Of 2 successful attacks on single images, all also mislead"),
        ([0, 1, 1, 1], [0, 0, 1, 1], "Of 3 successful attacks on single images, 2 also mislead"),
        ([0, 0, 0, 1], [0, 0, 1, 1], "Another 1 mislead the served model alone."),
        ([0, 0, 0, 0], [0, 0, 0, 0], "No attack succeeded"),
    ],
)
def test_report_says_which_successes_mislead_the_served_model(
    torch_model: list[int], served: list[int], words: str
) -> None:
    figures = model_figures(result(make_target(3), torch_model, served))
    assert any(words in finding for finding in findings(figures, "accuracy", "image"))


def test_rank_counts_the_classes_before_the_label() -> None:
    logits = np.array([[3.0, 1, 2], [3, 1, 2], [3, 1, 2]])
    assert label_rank(logits, np.array([0, 2, 1])).tolist() == [0, 1, 2]


def test_equal_logits_are_ordered_as_argmax_orders_them() -> None:
    assert label_rank(np.zeros((3, 3)), np.array([0, 1, 2])).tolist() == [0, 1, 2]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_never_right(value: float) -> None:
    logits = np.array([[value, 0.0, 5.0], [5.0, 0.0, value]])
    assert label_rank(logits, np.array([2, 0])).tolist() == [3, 3]
    assert np.isneginf(margin(logits, np.array([2, 0]))).all()


def test_margin_is_the_lead_over_the_best_other_class() -> None:
    logits = np.array([[3.0, 1, 2], [3, 1, 2]])
    assert margin(logits, np.array([0, 1])).tolist() == [1.0, -2.0]


@pytest.mark.parametrize(
    ("value", "message"), [(np.nan, "finite"), (1.1, r"\[0, 1\]"), (0.56, "within")]
)
def test_forbidden_adversarial_input_is_refused(value: float, message: str) -> None:
    attack, clean = FGSM(eps=["4/255"]), np.full((2, 1, 2, 2), 0.5, np.float32)
    adversarial = clean.copy()
    adversarial[1, 0, 0, 0] = value
    before, made, part = (
        Batch(inputs=images, labels=np.zeros(len(images), np.int64))
        for images in (clean, adversarial, adversarial[:1])
    )
    with pytest.raises(BoundsError, match=message):
        attack.size(before, made, attack.budgets()[0])
    with pytest.raises(BoundsError, match="shape"):
        attack.size(before, part, attack.budgets()[0])


@pytest.mark.parametrize("resize", [None, 4])  # the border that is cut away stands around it
def test_8bit_path_rounds_to_whole_grey_values(resize: int | None) -> None:
    inputs = np.array([[[[0.1, 0.5], [100.4 / 255, 1.0]]]], np.float32)
    rounded = in_8bit(inputs, ImageSpec(channels=1, height=2, width=2, resize=resize))
    np.testing.assert_allclose(rounded, np.rint(inputs * 255) / 255, atol=1e-7)


def test_torch_and_served_model_are_scored_apart() -> None:
    target = make_target(3)
    torch_model = target.require_torch_model()
    inputs = load_inputs(make_images(8), target.image_spec)
    labels = target.runtime.predict(inputs).argmax(axis=1)
    for parameter in torch_model.parameters():
        parameter.data.neg_()
    meter = Meter(24)
    found = score(target.task, ask(target, inputs, meter), labels, np.zeros(8))
    assert (found.served_rank == 0).all() and (found.eight_bit_rank == 0).all()
    assert (found.torch_rank == 2).all() and (found.margin < 0).all()
    assert meter.done == 24

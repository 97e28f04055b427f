"""The worst case counts what fools the PyTorch model or the served model."""

from collections.abc import Callable

import numpy as np
import pytest

from robustness.report.sentences import findings
from robustness.report.summary import model_figures
from robustness.scoring import (
    ModelResult,
    Scoring,
    combine,
    largest_rank,
    score_clean,
    worst_ranks,
)
from robustness.spec import EvaluationSpec
from robustness.target import Target

SPEC = EvaluationSpec.model_validate({"attacks": [{"name": "pgd", "eps": ["4/255"]}]})


def result(target: Target, torch_model: list[int], served: list[int]) -> ModelResult:
    """Four images of class 0 that are right unattacked, with these ranks under attack."""
    logits, no = np.tile([1.0, 0.0, 0.0], (4, 1)), np.zeros(4, bool)
    clean = score_clean(logits, logits, logits, np.zeros(4, np.int64), no)
    scored = Scoring(
        torch_rank=np.array(torch_model), served_rank=np.array(served),
        eight_bit_rank=np.array(served),
        index=np.array(served), margin=np.zeros(4), distance=np.zeros(4), finite=~no,
    )  # fmt: skip
    cells = [combine(clean, [scored], ["plain"])]
    return ModelResult(target=target, clean=clean, cells=list(cells), inputs_digest="")


def test_either_judge_can_make_an_image_fall(make_target: Callable[..., Target]) -> None:
    found = result(make_target(3), torch_model=[0, 1, 0, 1], served=[0, 0, 1, 1])
    assert worst_ranks(SPEC, found)["4/255"].tolist() == [0, 1, 1, 1]
    largest = largest_rank(SPEC, found)
    assert largest is not None and largest.tolist() == [0, 1, 1, 1]
    figures = model_figures(SPEC, found)
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
    torch_model: list[int], served: list[int], words: str, make_target: Callable[..., Target]
) -> None:
    figures = model_figures(SPEC, result(make_target(3), torch_model, served))
    assert any(words in finding for finding in findings(figures, "accuracy", "image"))

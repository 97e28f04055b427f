import numpy as np
import pytest

from export.manifest import FormatParity, Parity
from export.parity import ParityError, measure, require

INPUTS = np.random.default_rng(0).random((1000, 1, 2, 2), np.float32)


def reference(batch: np.ndarray) -> np.ndarray:
    return batch.reshape(len(batch), 4)


def figures(samples: int = 1000, difference: float = 0.0, mismatches: int = 0) -> Parity:
    formats = {"g": FormatParity(max_abs_diff=difference, top1_mismatches=mismatches)}
    return Parity(samples=samples, data="noise", tolerance=1e-4, formats=formats)


def test_differences_and_changed_classes_are_counted_over_all_images() -> None:
    def shifted(batch: np.ndarray) -> np.ndarray:
        logits = reference(batch).copy()
        logits[0, 0] += 100  # the first image of each batch: 1 + 1 + 16 of them
        return logits

    done = []
    measured = measure(
        reference, {"same": reference, "shifted": shifted}, INPUTS, on_progress=done.append
    )
    assert measured["same"] == FormatParity(max_abs_diff=0, top1_mismatches=0)
    assert measured["shifted"].max_abs_diff == pytest.approx(100)
    assert 0 < measured["shifted"].top1_mismatches <= len(done)
    assert sum(done) == 1000 and set(done[:3]) == {1, 7, 64}


def test_a_batch_that_is_not_dynamic_is_refused() -> None:
    with pytest.raises(ParityError, match=r"fixed: logits must be \(7, 4\), got \(1, 4\)"):
        measure(reference, {"fixed": lambda batch: reference(batch)[:1]}, INPUTS)


def test_a_logit_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ParityError, match="nan: logits must be finite"):
        measure(reference, {"nan": lambda batch: reference(batch) * np.nan}, INPUTS)


@pytest.mark.parametrize(
    ("parity", "message"),
    [
        (figures(samples=999), "at least 1000 images, got 999"),
        (figures(difference=1.1e-4), "g: logits differ by 1.10e-04, more than 1e-04"),
        (figures(mismatches=1), "g: 1 of 1000 images change their class"),
    ],
)
def test_figures_that_are_not_good_enough_are_refused(parity: Parity, message: str) -> None:
    with pytest.raises(ParityError, match=message):
        require(parity)


def test_good_figures_pass() -> None:
    require(figures(difference=1e-4))

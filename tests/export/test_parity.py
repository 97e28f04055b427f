from collections.abc import Callable

import numpy as np
import pytest

from export.parity import Candidate, ParityError, Predict, measure, require, require_enough
from export.samples import Feed, Samples
from runtimes.manifest import FormatParity, Parity, Precision

PIXELS = np.random.default_rng(0).integers(0, 256, (1000, 1, 2, 2), dtype=np.uint8)
LABELS = PIXELS.reshape(1000, 4).argmax(1)
SAMPLES = Samples(pixels=PIXELS, labels=LABELS, description="noise")


def reference(feed: Feed) -> np.ndarray:
    return feed["images"].reshape(len(feed["images"]), 4)


def on(predict: Predict) -> Candidate:
    return Candidate(predict=predict, runtime="tests")


def changed(change: Callable[[np.ndarray], np.ndarray]) -> Candidate:
    return on(lambda feed: change(reference(feed).copy()))


def figures(
    *,
    samples: int = 1000,
    difference: float = 0.0,
    mismatches: int = 0,
    precision: Precision = "fp32",
    accuracy: float | None = 0.9,
) -> Parity:
    one = FormatParity(
        max_abs_diff=difference,
        top1_mismatches=mismatches,
        precision=precision,
        accuracy=accuracy,
    )
    return Parity(samples=samples, data="noise", tolerance=1e-4, accuracy=0.9, formats={"g": one})


def test_differences_and_changed_classes_are_counted_over_all_samples() -> None:
    def shifted(logits: np.ndarray) -> np.ndarray:
        logits[0, 0] += 100  # the first sample of each batch: 1 + 1 + 16 of them
        return logits

    done = []
    candidates = {"same": on(reference), "shifted": changed(shifted)}
    parity = measure(reference, candidates, SAMPLES, on_progress=done.append)
    same, other = parity.formats["same"], parity.formats["shifted"]
    assert (same.max_abs_diff, same.top1_mismatches) == (0, 0)
    assert other.max_abs_diff == pytest.approx(100)
    assert 0 < other.top1_mismatches <= len(done)
    assert sum(done) == 1000 and set(done[:3]) == {1, 7, 64}
    assert (parity.samples, parity.data, same.runtime) == (1000, "noise", "tests")


def test_accuracy_is_measured_where_there_are_labels() -> None:
    reversed_ = changed(lambda logits: -logits)
    parity = measure(reference, {"g": reversed_}, SAMPLES)
    assert parity.accuracy == 1
    assert (
        parity.formats["g"].accuracy
        == (LABELS == (-PIXELS.reshape(1000, 4).astype(int)).argmax(1)).mean()
    )
    bare = measure(reference, {"g": reversed_}, Samples(pixels=PIXELS, labels=None, description=""))
    assert bare.accuracy is None and bare.formats["g"].accuracy is None


def test_a_batch_that_is_not_dynamic_and_a_logit_that_is_not_finite_are_refused() -> None:
    with pytest.raises(ParityError, match=r"fixed: logits must be \(7, 4\), got \(1, 4\)"):
        measure(reference, {"fixed": changed(lambda logits: logits[:1])}, SAMPLES)
    with pytest.raises(ParityError, match="nan: logits must be finite"):
        measure(reference, {"nan": changed(lambda logits: logits * np.nan)}, SAMPLES)


@pytest.mark.parametrize(
    ("parity", "message"),
    [
        (figures(difference=1.1e-4), "g: logits differ by 1.10e-04, more than 1e-04"),
        (figures(mismatches=1), "g: 1 of 1000 samples change their class"),
        (
            figures(mismatches=6, precision="int8"),
            "g: 6 of 1000 samples change their class in int8, more than 0.5%",
        ),
        (figures(accuracy=0.896, precision="fp16"), r"changes by -0.40 points in fp16, more than"),
        (figures(accuracy=None, precision="bf16"), "samples must have labels to score bf16"),
    ],
)
def test_figures_that_are_not_good_enough_are_refused(parity: Parity, message: str) -> None:
    with pytest.raises(ParityError, match=message):
        require(parity)


def test_too_few_samples_are_refused_and_good_figures_pass() -> None:
    require(figures(difference=1e-4))
    require(figures(accuracy=None))
    require(figures(mismatches=5, difference=3.0, accuracy=0.897, precision="int8"))
    with pytest.raises(ValueError, match="at least 1000 samples, got 999"):
        require(figures(samples=999))
    with pytest.raises(ValueError, match="1000 samples, got 844 beside 256 for calibration"):
        require_enough(844, calibration=256)

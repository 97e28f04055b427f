"""Held-out samples, and what is measured and asked of the graphs that answer them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.token_set import Ragged
from export.parity import Candidate, ParityError, Predict, measure, require, require_enough
from export.run import open_run
from export.samples import Feed, Samples, open_samples, spread
from runtimes.manifest import FormatParity, Parity
from runtimes.tasks import IMAGES, MASKS, TASKS

PIXELS = np.random.default_rng(0).integers(0, 256, (1000, 1, 2, 2), dtype=np.uint8)
LABELS = PIXELS.reshape(1000, 4).argmax(1)
SAMPLES = Samples(inputs=PIXELS, labels=LABELS, description="noise")


def reference(feed: Feed) -> np.ndarray:
    return feed["images"].reshape(len(feed["images"]), 4)


def on(predict: Predict) -> Candidate:
    return Candidate(predict=predict, runtime="tests")


def changed(change: Callable[[np.ndarray], np.ndarray]) -> Candidate:
    return on(lambda feed: change(reference(feed).copy()))


def figures(*, accuracy: float | None = 0.9, **measured: Any) -> Parity:
    zero = {"max_abs_diff": 0.0, "top1_mismatches": 0, "precision": "fp32"}
    one = FormatParity(**zero | measured, accuracy=accuracy)
    return Parity(samples=1000, data="noise", tolerance=1e-4, accuracy=0.9, formats={"g": one})


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
    right = LABELS == (-PIXELS.reshape(1000, 4).astype(int)).argmax(1)
    assert (parity.accuracy, parity.formats["g"].accuracy) == (1, right.mean())
    bare = measure(reference, {"g": reversed_}, Samples(inputs=PIXELS, labels=None, description=""))
    assert bare.accuracy is None and bare.formats["g"].accuracy is None


def test_a_batch_that_is_not_dynamic_and_a_logit_that_is_not_finite_are_refused() -> None:
    with pytest.raises(ParityError, match=r"fixed: logits must be \(7, 4\), got \(1, 4\)"):
        measure(reference, {"fixed": changed(lambda logits: logits[:1])}, SAMPLES)
    with pytest.raises(ParityError, match="nan: logits must be finite"):
        measure(reference, {"nan": changed(lambda logits: logits * np.nan)}, SAMPLES)


@pytest.mark.parametrize(
    ("parity", "message"),
    [
        (figures(max_abs_diff=1.1e-4), "g: logits differ by 1.10e-04, more than 1e-04"),
        (figures(top1_mismatches=1), "g: 1 of 1000 samples change their class"),
        (
            figures(top1_mismatches=6, precision="int8"),
            "g: 6 of 1000 samples change their class in int8, more than 0.5%",
        ),
        (figures(accuracy=0.896, precision="fp16"), r"changes by -0.40 points in fp16, more than"),
        (figures(accuracy=None, precision="bf16"), "samples must have labels to score bf16"),
    ],
)
def test_figures_that_are_not_good_enough_are_refused(parity: Parity, message: str) -> None:
    with pytest.raises(ParityError, match=message):
        require(parity)


def test_figures_at_the_limits_pass() -> None:
    require(figures(max_abs_diff=1e-4))
    require(figures(accuracy=None))
    require(figures(top1_mismatches=5, max_abs_diff=3.0, accuracy=0.897, precision="int8"))
    require_enough(1000)
    with pytest.raises(ValueError, match="at least 1000 samples, got 999$"):
        require_enough(999)


def test_indices_are_spread_evenly() -> None:
    assert spread(10, 3).tolist() == [0, 3, 6]
    assert spread(4, 9).tolist() == [0, 1, 2, 3]
    assert spread(0, 5).tolist() == []


def test_held_out_images_are_read_as_the_model_reads_them(run_folder: Path) -> None:
    samples = open_samples(open_run(run_folder), limit=100)
    assert len(samples) == 100 and samples.labels is not None
    images = samples.take(np.array([5, 2])).feed()["images"]
    assert images.dtype == np.float32 and images.shape == (2, 1, 28, 28)
    np.testing.assert_array_equal(images[1] * 255, np.asarray(samples.inputs)[2])
    assert samples.description.endswith("held-out validation split")


def test_texts_are_padded_to_the_longest_by_their_own_pad(
    text_run_folder: Path,
) -> None:
    samples = open_samples(open_run(text_run_folder), limit=50)
    lengths = samples.feed()["mask"].sum(1)
    shortest = int(lengths.argmin())
    feed = samples.feed([shortest])
    assert feed["tokens"].shape == (1, lengths.min()) and feed["mask"].all()
    assert lengths.max() == 12  # cut
    tokens = Ragged.of([np.array([3, 4]), np.array([5])], np.uint16)
    feed = Samples(inputs=tokens, pad=1, labels=None, description="").feed()
    assert feed["tokens"].tolist() == [[3, 4], [5, 1]]


def test_images_in_disorder_keep_their_pixels_where_these_have_classes() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 9, 7), np.uint8)
    masks = Samples(inputs=images, labels=None, description="three", task=TASKS[MASKS])
    mixed = masks.in_disorder(seed=0).inputs
    assert isinstance(mixed, np.ndarray) and mixed.shape == images.shape
    for image, other in zip(images, mixed, strict=True):
        colors, others = (sorted(map(tuple, each.reshape(3, -1).T)) for each in (image, other))
        assert colors == others and (image != other).mean() > 0.9
    assert replace(masks, task=TASKS[IMAGES]).in_disorder(seed=0).inputs is images


def test_texts_in_disorder_keep_their_tokens_but_not_their_order() -> None:
    rows = [np.arange(50), np.arange(30, 90), np.array([7])]
    samples = Samples(inputs=Ragged.of(rows, np.uint32), labels=None, description="three")
    mixed = samples.in_disorder(seed=0)
    assert isinstance(mixed.inputs, Ragged) and len(mixed) == 3
    for i, row in enumerate(rows):
        assert np.array_equal(np.sort(mixed.inputs[i]), row)
    assert (mixed.inputs.values == np.concatenate(rows)).mean() < 0.2

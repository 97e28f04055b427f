from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import stats

from robustness.certificates.smoothing import SELECTION, certify
from robustness.progress import Cancelled, Meter

SIGMA, ALPHA = 0.5, 0.001
SHAPE = (1, 6, 6)


class Halfspace:
    """Two classes on either side of a plane, whose distance is known exactly."""

    def __init__(self) -> None:
        self.weight = np.random.default_rng(3).normal(size=SHAPE)
        self.bias = -float(self.weight.sum()) / 2

    def __call__(self, images: np.ndarray) -> np.ndarray:
        score = images.reshape(len(images), -1) @ self.weight.ravel() + self.bias
        return np.stack([np.zeros(len(images)), score], axis=1)

    def at(self, distances: np.ndarray) -> np.ndarray:
        """Images at these signed distances from the plane, (N, 1, 6, 6) float32."""
        normal = self.weight / np.linalg.norm(self.weight)
        return (0.5 + distances[:, None, None, None] * normal).astype(np.float32)


def test_radii_agree_with_the_closed_form_on_a_linear_classifier() -> None:
    # The smoothed plane is the plane itself, so that an image's exact radius is its distance.
    model = Halfspace()
    distances = np.concatenate([np.linspace(-1.2, -0.25, 60), np.linspace(0.25, 1.2, 60)])
    samples = 10_000
    found = certify(
        model, model.at(distances), sigma=SIGMA, samples=samples, alpha=ALPHA, seeds=range(120)
    )
    exact = np.abs(distances)
    assert np.array_equal(found.index, (distances > 0).astype(int))
    assert (found.radius > exact).sum() <= 1  # each is too large with probability 0.001
    # The vote is binomial: what is lost to the bound at its mean, and 3.5 standard deviations.
    share = stats.norm.cdf(exact / SIGMA)
    spread = np.sqrt(share * (1 - share) / samples)
    least = stats.norm.ppf(stats.beta.ppf(ALPHA, *_counts(share - 3.5 * spread, samples)))
    assert (found.radius >= SIGMA * least - 1e-9).all()
    near = exact < 0.8
    np.testing.assert_allclose(found.radius[near], exact[near], atol=0.06)


def _counts(share: np.ndarray, samples: int) -> tuple[np.ndarray, np.ndarray]:
    hits = np.floor(share * samples)
    return hits, samples - hits + 1


def test_images_near_the_border_get_the_right_class_or_none() -> None:
    model, distances = Halfspace(), np.linspace(-0.2, 0.2, 81)
    found = certify(
        model, model.at(distances), sigma=SIGMA, samples=1000, alpha=ALPHA, seeds=range(81)
    )
    certain = ~found.abstained
    assert 20 < certain.sum() < 81
    assert np.array_equal(found.index[certain], (distances > 0)[certain])
    assert (found.radius <= np.abs(distances)).all()


def test_the_largest_radius_is_that_of_a_unanimous_vote() -> None:
    model = Halfspace()
    found = certify(
        model, model.at(np.array([50.0])), sigma=0.25, samples=1000, alpha=ALPHA, seeds=[0]
    )
    assert found.radius[0] == pytest.approx(0.25 * stats.norm.ppf(ALPHA ** (1 / 1000)))


def test_an_image_on_the_border_abstains() -> None:
    model = Halfspace()
    found = certify(
        model, model.at(np.zeros(20)), sigma=SIGMA, samples=500, alpha=ALPHA, seeds=range(20)
    )
    assert found.abstained.all()
    assert (found.index == -1).all() and (found.radius == 0).all()


@pytest.mark.parametrize("batch", [1, 7, 100, 5000])
def test_neither_batch_nor_order_nor_neighbours_change_a_certificate(batch: int) -> None:
    model = Halfspace()
    images, seeds = model.at(np.linspace(-0.6, 0.6, 6)), [5, 4, 9, 2, 1, 0]
    run = partial(certify, model, sigma=SIGMA, samples=150, alpha=0.01)
    whole = run(images, seeds=seeds)
    turned = run(images[::-1], seeds=seeds[::-1], batch=batch)
    np.testing.assert_array_equal(whole.index, turned.index[::-1])
    np.testing.assert_array_equal(whole.radius, turned.radius[::-1])


def test_noise_has_the_spread_it_should_and_is_not_clipped() -> None:
    seen: list[np.ndarray] = []

    def predict(images: np.ndarray) -> np.ndarray:
        seen.append(images.copy())
        return np.zeros((len(images), 2), np.float32)

    image = np.full((1, *SHAPE), 0.5, np.float32)
    certify(predict, image, sigma=SIGMA, samples=2000, alpha=ALPHA, seeds=[0])
    inputs = np.concatenate(seen)
    assert inputs.dtype == np.float32 and len(inputs) == SELECTION + 2000
    assert inputs.std() == pytest.approx(SIGMA, rel=0.01)
    assert inputs.mean() == pytest.approx(0.5, abs=0.01)
    assert inputs.min() < 0 and inputs.max() > 1


def test_answers_that_are_no_numbers_vote_for_nobody() -> None:
    def broken(images: np.ndarray) -> np.ndarray:
        return np.full((len(images), 3), np.nan, np.float32)

    def sometimes(images: np.ndarray) -> np.ndarray:
        logits = np.tile(np.array([1.0, 0.0, 0.0], np.float32), (len(images), 1))
        logits[images[:, 0, 0, 0] > 0.5] = np.inf
        return logits

    image = np.full((1, *SHAPE), 0.5, np.float32)
    for predict in (broken, sometimes):
        found = certify(predict, image, sigma=SIGMA, samples=500, alpha=ALPHA, seeds=[0])
        assert found.abstained[0] and found.index[0] == -1


def test_every_evaluation_is_counted_and_may_be_stopped() -> None:
    model = Halfspace()
    images = model.at(np.array([0.3, -0.3]))
    run = partial(
        certify, model, images, sigma=SIGMA, samples=300, alpha=ALPHA, seeds=[0, 1], batch=64
    )
    meter = Meter(800)
    run(meter=meter)
    assert meter.done == 2 * (SELECTION + 300)
    stopped = Meter(800, should_stop=lambda: stopped.done >= 200)
    with pytest.raises(Cancelled):
        run(meter=stopped)
    assert stopped.done == 256


def test_no_generator_and_no_image_changes() -> None:
    model = Halfspace()
    images, state = model.at(np.array([0.3])), str(np.random.get_state())
    before = images.copy()
    certify(model, images, sigma=SIGMA, samples=50, alpha=ALPHA, seeds=[0])
    assert np.array_equal(images, before) and str(np.random.get_state()) == state


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"sigma": 0.0}, "sigma must be a positive number, got 0.0"),
        ({"sigma": float("nan")}, "sigma must be a positive number"),
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"alpha": 1.0}, r"alpha must lie in \(0, 1\), got 1.0"),
        ({"seeds": [0, 1]}, "seeds must be one per image, 1, got 2"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"images": np.zeros((1, *SHAPE))}, "images must be .* float32, got"),
        ({"images": np.zeros(SHAPE, np.float32)}, "images must be .* float32, got"),
    ],
)
def test_bad_arguments_are_refused(changed: dict[str, Any], rule: str) -> None:
    good: dict[str, Any] = {
        "images": np.zeros((1, *SHAPE), np.float32),
        "sigma": SIGMA, "samples": 10, "alpha": ALPHA, "seeds": [0], "batch": 8,
    }  # fmt: skip
    with pytest.raises(ValueError, match=rule):
        certify(Halfspace(), **(good | changed))

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from robustness.attacks.base import Batch, Search
from robustness.certificates.smoothing import SELECTION, Smoothing

SIGMA, ALPHA = 0.5, 0.001
SHAPE = (1, 6, 6)


class Halfspace:
    """Two classes on either side of a plane, whose distance is known exactly."""

    def __init__(self) -> None:
        self.weight = np.random.default_rng(4).normal(size=SHAPE)
        self.bias = -float(self.weight.sum()) / 2

    def __call__(self, images: np.ndarray) -> np.ndarray:
        score = images.reshape(len(images), -1) @ self.weight.ravel() + self.bias
        return np.stack([np.zeros(len(images)), score], axis=1)

    def at(self, distances: np.ndarray) -> np.ndarray:
        """Images at these signed distances from the plane, (N, 1, 6, 6) float32."""
        normal = self.weight / np.linalg.norm(self.weight)
        return (0.5 + distances[:, None, None, None] * normal).astype(np.float32)


def certify(
    model: Callable[[np.ndarray], np.ndarray], images: np.ndarray, *, sigma: float, samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """The classes (N,) that are proved, -1 where none is, and their radii (N,)."""
    attack = Smoothing(sigma=[str(sigma)], samples=samples, alpha=str(ALPHA))
    target: Any = SimpleNamespace(predict=model)
    batch = Batch(inputs=images, labels=np.zeros(len(images), np.int64))
    [budget] = attack.budgets()
    return attack.certify(target, batch, [budget], Search(seeds=range(len(images))))[budget]


def test_radii_agree_with_the_closed_form_on_a_linear_classifier() -> None:
    # The smoothed plane is the plane itself, so that an image's exact radius is its distance.
    model = Halfspace()
    distances = np.concatenate([np.linspace(-1.2, -0.25, 60), np.linspace(0.25, 1.2, 60)])
    samples = 10_000
    index, radius = certify(model, model.at(distances), sigma=SIGMA, samples=samples)
    exact = np.abs(distances)
    assert np.array_equal(index, (distances > 0).astype(int))
    assert (radius > exact).sum() <= 1  # each is too large with probability 0.001
    # The vote is binomial: what is lost to the bound at its mean, and 3.5 standard deviations.
    share = stats.norm.cdf(exact / SIGMA)
    spread = np.sqrt(share * (1 - share) / samples)
    least = stats.norm.ppf(stats.beta.ppf(ALPHA, *_counts(share - 3.5 * spread, samples)))
    assert (radius >= SIGMA * least - 1e-9).all()
    near = exact < 0.8
    np.testing.assert_allclose(radius[near], exact[near], atol=0.06)


def _counts(share: np.ndarray, samples: int) -> tuple[np.ndarray, np.ndarray]:
    hits = np.floor(share * samples)
    return hits, samples - hits + 1


def test_images_near_the_border_get_the_right_class_or_none() -> None:
    model, distances = Halfspace(), np.linspace(-0.2, 0.2, 81)
    index, radius = certify(model, model.at(distances), sigma=SIGMA, samples=1000)
    certain = index >= 0
    assert 20 < certain.sum() < 81
    assert np.array_equal(index[certain], (distances > 0)[certain])
    assert (radius <= np.abs(distances)).all()


def test_the_largest_radius_is_that_of_a_unanimous_vote() -> None:
    model = Halfspace()
    index, radius = certify(model, model.at(np.array([1.0])), sigma=0.05, samples=1000)
    assert radius[0] == pytest.approx(0.05 * stats.norm.ppf(ALPHA ** (1 / 1000)))


def test_an_image_on_the_border_abstains() -> None:
    model = Halfspace()
    index, radius = certify(model, model.at(np.zeros(20)), sigma=SIGMA, samples=500)
    assert (index == -1).all() and (radius == 0).all()


def test_noise_has_the_spread_it_should_and_is_not_clipped() -> None:
    seen: list[np.ndarray] = []

    def predict(images: np.ndarray) -> np.ndarray:
        seen.append(images.copy())
        return np.zeros((len(images), 2), np.float32)

    image = np.full((1, *SHAPE), 0.5, np.float32)
    certify(predict, image, sigma=SIGMA, samples=2000)
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
        index, radius = certify(predict, image, sigma=SIGMA, samples=500)
        assert index[0] == -1 and radius[0] == 0

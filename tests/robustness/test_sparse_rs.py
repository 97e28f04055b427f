"""Sparse-RS against every change there is, on linear models whose best attacks are known."""

import itertools
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from robustness.attacks.base import Batch, BoundsError, Search
from robustness.attacks.sparse_rs import PatchRS, RandomSearch, SparseRS
from robustness.spec import ATTACKS

COUNT, SIDE = 4, 6


class Linear:
    """Two classes of a linear model, and images with their margins of the first one."""

    def __init__(self, weight: np.ndarray, images: np.ndarray) -> None:
        self.weight, self.images, self.asked = weight.ravel(), images, 0
        self.batch = Batch(inputs=images, labels=np.zeros(len(images), np.int64))
        flat = images.reshape(len(images), -1)
        # What each pixel alone can lower the margin by: it becomes black or white.
        self.gains = np.where(self.weight > 0, flat, flat - 1) * self.weight

    def predict(self, images: np.ndarray, meter: None = None) -> np.ndarray:
        self.asked += len(images)
        margins = images.reshape(len(images), -1).astype(np.float64) @ self.weight
        return np.stack([margins, np.zeros_like(margins)], axis=1).astype(np.float32)

    def lowered(self, attack: RandomSearch) -> np.ndarray:
        """By how much an attack lowers the margins, (N,)."""
        target: Any = self
        [budget] = attack.budgets()
        search = Search(seeds=range(len(self.images)), leave=False)
        made = attack.run(target, self.batch, budget, search)
        assert attack.allowed(self.batch, made, budget, target, search.seeds).all()
        assert (attack.size(self.batch, made, budget) <= budget.value).all()
        change = (self.images.astype(np.float64) - made.images).reshape(len(self.images), -1)
        return change @ self.weight


@pytest.fixture
def noise() -> Linear:
    """Random weights and random images."""
    draw = np.random.default_rng(0)
    images = draw.random((COUNT, 1, SIDE, SIDE), dtype=np.float32)
    return Linear(draw.normal(size=SIDE * SIDE), images)


@pytest.fixture
def hill() -> Linear:
    """Weights that rise towards one place, and grey images."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    weight = np.exp(-((rows - 4) ** 2 + (columns - 1) ** 2) / 9)
    return Linear(weight, np.full((COUNT, 1, SIDE, SIDE), 0.5, np.float32))


def best_patch(model: Linear, side: int) -> np.ndarray:
    """The most that any patch lowers the margins by, (N,): all places are tried."""
    gains = model.gains.reshape(-1, SIDE, SIDE)
    places = itertools.product(range(SIDE - side + 1), repeat=2)
    patches = [gains[:, row : row + side, left : left + side] for row, left in places]
    return np.max([patch.sum((1, 2)) for patch in patches], axis=0)


@pytest.mark.parametrize("pixels", [1, 3, SIDE * SIDE])
def test_pixels_reach_the_exact_optimum_and_never_beat_it(pixels: int, noise: Linear) -> None:
    best = np.sort(noise.gains, axis=1)[:, ::-1][:, :pixels].sum(1)
    found = noise.lowered(SparseRS(eps=[str(pixels)], queries=1200))
    np.testing.assert_allclose(found, best, atol=1e-5)
    assert noise.asked == COUNT * 1200


@pytest.mark.parametrize("side", [1, 2, 4])
def test_a_patch_reaches_the_exact_optimum_where_nothing_else_holds_it(
    side: int, hill: Linear
) -> None:
    found = hill.lowered(PatchRS(patch=[side], queries=600))
    np.testing.assert_allclose(found, best_patch(hill, side), atol=1e-5)


@pytest.mark.parametrize("side", [2, 6, 9])
def test_a_patch_never_beats_the_exact_optimum(side: int, noise: Linear) -> None:
    found, best = noise.lowered(PatchRS(patch=[side], queries=600)), best_patch(noise, min(side, 6))
    assert (found <= best + 1e-5).all() and (found > 0.4 * best).all()
    assert side == 2 or np.allclose(found, best, atol=1e-5)  # there is but one place


def test_images_of_any_shape_keep_their_patch_within() -> None:
    draw = np.random.default_rng(1)
    images = draw.random((3, 3, 4, 9), dtype=np.float32)
    model = Linear(draw.normal(size=108), images)
    assert (model.lowered(PatchRS(patch=[3], queries=80)) > 0).all()
    assert (model.lowered(SparseRS(eps=["4"], queries=80)) > 0).all()


def test_changes_beyond_one_patch_are_neither_allowed_nor_measured() -> None:
    attack = PatchRS(patch=[3])
    clean = Batch(inputs=np.zeros((4, 1, 6, 6), np.float32), labels=np.zeros(4, np.int64))
    [budget] = attack.budgets()
    images = clean.images.copy()
    images[0, 0, 1:4, 2:5] = 1  # fills the square
    images[1, 0, 0, 0] = images[1, 0, 2, 2] = 0.5  # its corners
    images[2, 0, 0, 0] = images[2, 0, 0, 3] = 0.5  # one column too far
    images[3, 0, 1, 1] = images[3, 0, 4, 1] = 0.5  # one row too far
    made = Batch(inputs=images, labels=clean.labels)
    target: Any = None
    assert attack.allowed(clean, made, budget, target, [0]).tolist() == [True, True, False, False]
    rows = np.array([0, 1])
    assert attack.size(clean.take(rows), made.take(rows), budget).tolist() == [3, 3]
    with pytest.raises(BoundsError, match="one square of 3 pixels a side, got 4"):
        attack.size(clean, made, budget)
    assert attack.describe(budget) == "with one patch of 3x3 pixels"


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        ({"name": "sparse-rs", "eps": ["2.5"]}, "whole numbers of pixels"),
        ({"name": "sparse-rs", "eps": ["8/255"]}, "whole numbers of pixels"),
        ({"name": "sparse-rs", "norm": "Linf", "eps": ["8"]}, "L0"),
        ({"name": "patch-rs", "patch": [3, 3]}, "must not name a value twice"),
        ({"name": "patch-rs", "patch": [0]}, "greater than or equal to 1"),
    ],
)
def test_budgets_that_mean_nothing_are_refused(attack: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ATTACKS[attack["name"]].model_validate(attack)

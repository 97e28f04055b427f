"""HopSkipJump and RayS, which see classes alone, where the nearest misclassified input is known."""

from typing import Any

import numpy as np
import pytest

from robustness.attacks.hopskipjump import HopSkipJump
from robustness.attacks.labels import LabelAttack
from robustness.attacks.queries import Oracle
from robustness.attacks.rays import RayS

attacks = pytest.mark.parametrize(
    ("kind", "norm"), [(HopSkipJump, "L2"), (HopSkipJump, "Linf"), (RayS, "Linf")]
)


class Plane:
    """Two classes on both sides of a plane through the middle of the cube; rows are counted."""

    def __init__(self, *, shown: bool = True) -> None:
        self.weight, self.shown = np.random.default_rng(4).normal(size=36), shown
        self.asked: list[int] = []

    def __call__(self, images: np.ndarray) -> np.ndarray:
        self.asked.append(len(images))
        # Sums and no product: BLAS rounds a row differently in batches of different sizes.
        score = ((images.reshape(len(images), 36) - 0.5) * self.weight).sum(1)
        logits = np.stack([score, -score], axis=1)
        return logits if self.shown else np.eye(2)[logits.argmax(1)]

    def distances(self, images: np.ndarray, norm: str) -> np.ndarray:
        """Of images from the plane: |w x| over the dual norm of w."""
        score = np.abs(((images.reshape(len(images), 36) - 0.5) * self.weight).sum(1))
        return score / np.linalg.norm(self.weight, 2 if norm == "L2" else 1)


def some_images(count: int = 12) -> np.ndarray:
    return np.random.default_rng(2).uniform(0.3, 0.7, (count, 1, 6, 6)).astype(np.float32)


def nearest(
    kind: type[LabelAttack], norm: str, model: Any, images: np.ndarray, *, queries: int = 1500,
    labels: np.ndarray | None = None, until: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    attack = kind.model_validate({"norm": norm, "eps": ["1/255"], "queries": queries})
    own = model(images).argmax(1) if labels is None else labels
    return attack.nearest(Oracle(model), images, own, range(len(images)), until=until)


@attacks
def test_the_nearest_input_is_nearly_that_of_theory(kind: Any, norm: str) -> None:
    model, images = Plane(), some_images()
    exact = model.distances(images, norm)
    found, distance = nearest(kind, norm, model, images)
    assert (model(found).argmax(1) != model(images).argmax(1)).all()
    assert (distance >= exact * (1 - 1e-5)).all()
    assert np.median(distance / exact) < 1.1
    _, early = nearest(kind, norm, model, images, queries=200)
    assert (early >= distance).all() and (early > distance).any()


@attacks
def test_classes_are_all_that_is_used(kind: Any, norm: str) -> None:
    images = some_images(4)
    shown, hidden = (
        nearest(kind, norm, Plane(shown=s), images, queries=300) for s in (True, False)
    )
    assert all(np.array_equal(one, other) for one, other in zip(shown, hidden, strict=True))


@attacks
def test_no_image_is_asked_about_more_often_than_allowed(kind: Any, norm: str) -> None:
    model, images = Plane(), some_images()
    labels = model(images).argmax(1)
    for until, most in ((0.0, 12 * 77), (0.9, 12 * 40)):
        model.asked.clear()
        _, distance = nearest(kind, norm, model, images, queries=77, labels=labels, until=until)
        assert sum(model.asked) <= most and (until or sum(model.asked) == most)
        assert np.isfinite(distance).all()
    found, distance = nearest(kind, norm, model, images, labels=1 - labels)
    assert not distance.any() and np.array_equal(found, images)


@attacks
def test_where_nothing_is_misclassified_the_clean_image_comes_back(kind: Any, norm: str) -> None:
    images = some_images(3)
    found, distance = nearest(kind, norm, lambda x: np.tile([1.0, 0.0], (len(x), 1)), images)
    assert np.isinf(distance).all() and np.array_equal(found, images)


def test_hopskipjump_finds_a_start_that_noise_of_pixels_misses() -> None:
    def sides(images: np.ndarray) -> np.ndarray:
        """Another class where the halves of an image differ; its noise of pixels evens that out."""
        means = images.reshape(len(images), 28, 2, 14).mean((1, 3))
        far = np.abs(means[:, 0] - means[:, 1]) - 0.1
        return np.stack([-far, far], axis=1)

    images = np.full((6, 1, 28, 28), 0.5, np.float32)
    pixels = np.random.default_rng(0).random((200, 1, 28, 28), dtype=np.float32)
    assert not sides(pixels).argmax(1).any()
    _, distance = nearest(HopSkipJump, "L2", sides, images, queries=400)
    assert np.isfinite(distance).all()


def test_answers_that_are_no_numbers_are_another_class() -> None:
    oracle = Oracle(lambda _: np.array([[1, 0], [1, np.nan], [0, 1], [np.inf, 0]]))
    images, labels = np.zeros((4, 1, 1, 1), np.float32), np.zeros(4, np.int64)
    assert oracle.fooled(images, labels).tolist() == [False, True, True, True]

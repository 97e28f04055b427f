import numpy as np
import pytest

from robustness.attacks.queries import Oracle, Predict
from robustness.attacks.spsa import SPSA, Slopes

SHAPE = (1, 6, 6)


class Smooth:
    """Two classes: a score that bends in every direction, and its negative."""

    def __init__(self, bend: float = 1.0, scale: float = 1.0) -> None:
        draw = np.random.default_rng(4)
        self.weight = draw.normal(size=36) * scale
        self.bend = bend
        self.asked: list[int] = []

    def __call__(self, images: np.ndarray) -> np.ndarray:
        self.asked.append(len(images))
        # One row at a time: BLAS rounds a row differently in batches of different sizes.
        score = np.array([self.score(row.ravel().astype(np.float64)) for row in images])
        return np.stack([score, -score], axis=1).astype(np.float32)

    def score(self, x: np.ndarray) -> float:
        return float(self.weight @ x + self.bend * np.sin(3 * x).sum() - self.offset)

    @property
    def offset(self) -> float:
        return float(self.weight.sum() / 2 + self.bend * 36 * np.sin(1.5))

    def slope(self, image: np.ndarray) -> np.ndarray:
        """Of the margin of class 0, which is twice the score."""
        return 2 * (self.weight + 3 * self.bend * np.cos(3 * image.ravel())).reshape(image.shape)


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(first.ravel() @ second.ravel() / np.linalg.norm(first) / np.linalg.norm(second))


def some_images(count: int = 12) -> np.ndarray:
    draw = np.random.default_rng(2)
    return draw.uniform(0.3, 0.7, (count, *SHAPE)).astype(np.float32)


def estimator(model: Smooth, samples: int, seed: int = 0) -> Slopes:
    return Slopes(Oracle(model, None), 0, np.random.default_rng(seed), samples)


def spsa(
    model: Predict,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    eps: float,
    leave: bool = True,
    **options: int,
) -> np.ndarray:
    attack = SPSA.model_validate({"eps": [eps], **options})
    seeds = range(len(images))
    return attack.perturb(Oracle(model, None), images, labels, eps=eps, seeds=seeds, leave=leave)


@pytest.mark.parametrize("guessed", [False, True])
def test_estimate_tends_to_the_analytic_gradient(guessed: bool) -> None:
    model, image = Smooth(), some_images(1)[0]
    guess = np.random.default_rng(9).normal(size=SHAPE) + model.slope(image) / 4
    found = np.mean(
        [estimator(model, 128, seed).at(image, guess if guessed else None) for seed in range(60)],
        axis=0,
    )
    expected = model.slope(image)
    # 60 x 128 directions in 36 dimensions leave an error of about sqrt(36 / 7680) = 7 %.
    assert np.linalg.norm(found - expected) < 0.1 * np.linalg.norm(expected)


def test_single_estimate_points_along_the_gradient_as_theory_says() -> None:
    model, image = Smooth(), some_images(1)[0]
    found = [cosine(estimator(model, 128, s).at(image), model.slope(image)) for s in range(30)]
    assert np.mean(found) == pytest.approx((1 + 35 / 128) ** -0.5, abs=0.02)


def test_good_guess_spares_queries_at_equal_precision() -> None:
    model, image = Smooth(), some_images(1)[0]
    truth = model.slope(image)
    guess = truth + np.random.default_rng(1).normal(size=SHAPE) * np.std(truth) * 0.7
    plain = [cosine(estimator(model, 128, s).at(image), truth) for s in range(30)]
    model.asked.clear()
    helped = []
    for seed in range(30):
        slopes = estimator(model, 128, seed)
        slopes.at(image, guess)
        model.asked.clear()
        helped.append(cosine(slopes.at(image, guess), truth))
        assert 32 <= sum(model.asked) < 70
    assert np.mean(helped) > np.mean(plain) - 0.02


@pytest.mark.parametrize("guess", [np.zeros(SHAPE), np.random.default_rng(0).normal(size=SHAPE)])
def test_bad_guess_spares_almost_nothing(guess: np.ndarray) -> None:
    model, image = Smooth(), some_images(1)[0]
    guess = guess - model.slope(image) * np.vdot(guess, model.slope(image)) / np.sum(
        model.slope(image) ** 2
    )
    slopes = estimator(model, 128)
    slopes.at(image, guess)
    model.asked.clear()
    slopes.at(image, guess)
    assert sum(model.asked) > 115


def test_flat_model_has_no_slope() -> None:
    slopes = estimator(Smooth(bend=0, scale=0), 16)
    for _ in range(2):
        assert not slopes.at(some_images(1)[0], np.ones(SHAPE)).any()


def test_linear_model_falls_exactly_where_theory_says() -> None:
    model, images = Smooth(bend=0), some_images(40)
    scores = model(images)
    labels = scores.argmax(1)
    margin = np.abs(scores[:, 0] - scores[:, 1])
    eps = 0.03
    reach = 2 * eps * np.abs(model.weight).sum()
    found = spsa(model, images, labels, eps=eps, samples=64)
    fooled = model(found).argmax(1) != labels
    clear = np.abs(margin - reach) > 0.03 * reach
    assert np.array_equal(fooled[clear], (margin < reach)[clear])
    assert 5 < fooled.sum() < 35


def test_start_is_random() -> None:
    images = some_images(2)
    labels = Smooth()(images).argmax(1)
    found = spsa(Smooth(), images, labels, eps=0.3, steps=1, samples=4, leave=False)
    moved = np.abs(found - images)  # by the start, and by one step of 0.01
    assert moved.max() > 0.25 and len(np.unique(moved.round(4))) > 30
    assert not np.allclose(found[0] - images[0], found[1] - images[1], atol=0.05)


def test_fooled_and_misclassified_images_cost_no_further_query() -> None:
    model, images = Smooth(bend=0), some_images()
    labels = model(images).argmax(1)
    labels[:6] = 1 - labels[:6]
    model.asked.clear()
    found = spsa(model, images, labels, eps=0.5, steps=20, samples=16)
    assert np.array_equal(found[:6], images[:6])
    assert (model(found).argmax(1) != labels).all()
    assert sum(model.asked) < 12 + 6 * 10 * 17
    model.asked.clear()
    spsa(model, images, labels, eps=0.5, steps=20, samples=16, leave=False)
    assert 12 * 20 * 4 <= sum(model.asked) <= 12 * 20 * 16
    assert max(model.asked) <= 16


def test_scores_that_are_not_finite_leave_the_iterate_finite() -> None:
    draw = np.random.default_rng(0)

    def broken(batch: np.ndarray) -> np.ndarray:
        logits = np.ones((len(batch), 3), np.float32)
        logits[:, 0] += batch.mean((1, 2, 3))
        logits[draw.random(len(batch)) < 0.5] = np.nan
        return logits

    found = spsa(
        broken, some_images(3), np.zeros(3, np.int64), eps=0.1, steps=4, samples=8, leave=False,
    )  # fmt: skip
    assert np.isfinite(found).all()

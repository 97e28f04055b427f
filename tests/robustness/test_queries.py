"""Square, SPSA and randomized smoothing, which only ask for answers, where theory knows better."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from robustness.attacks.base import Batch, Search
from robustness.attacks.queries import Oracle, Predict
from robustness.attacks.spsa import SPSA, Slopes
from robustness.attacks.square import Square
from robustness.attacks.square_draws import Draws, pattern, side_schedule
from robustness.certificates.smoothing import SELECTION, Smoothing

EPS = {"Linf": 0.1, "L2": 0.7}
norms = pytest.mark.parametrize("norm", ["Linf", "L2"])


class Network:
    """A small network in numpy that answers each row alike in every batch, and counts rows."""

    def __init__(self) -> None:
        draw = np.random.default_rng(5)
        self.first, self.second = draw.normal(size=(128, 24)) / 8, draw.normal(size=(24, 4))
        self.asked: list[int] = []

    def __call__(self, images: np.ndarray) -> np.ndarray:
        self.asked.append(len(images))
        rows = [np.tanh((row.ravel() - 0.5) @ self.first) @ self.second for row in images]
        return np.stack(rows).astype(np.float32)


def perturb(
    kind: type[Square | SPSA], model: Predict, images: np.ndarray, labels: np.ndarray,
    *, eps: float, leave: bool = True, **options: Any,
) -> np.ndarray:  # fmt: skip
    attack = kind.model_validate({"eps": [str(eps)], **options})
    search = Search(seeds=range(len(images)), leave=leave)
    return attack.perturb(Oracle(model), images, labels, eps, search)


@pytest.fixture
def case() -> tuple[Network, np.ndarray, np.ndarray]:
    model = Network()
    images = np.random.default_rng(1).random((30, 2, 8, 8), dtype=np.float32)
    labels = model(images).argmax(1)
    labels[::10] = (labels[::10] + 1) % 4
    model.asked.clear()
    return model, images, labels


def test_fooled_images_are_not_asked_about_again_and_the_batch_is_refilled(case: Any) -> None:
    model, images, labels = case
    waiting = np.flatnonzero(model(images).argmax(1) == labels)
    model.asked.clear()
    draws = Draws(images.shape[1:], "Linf", 60, range(30), 8)
    found = Square(eps=["0.1"], queries=60).search(
        Oracle(model), images, labels, waiting, draws, eps=0.1, seats=8
    )
    attack = model.asked.copy()
    assert 3 < (model(found).argmax(1) != labels)[waiting].sum() < 27
    assert attack[:20] == [8] * 20
    assert attack == sorted(attack, reverse=True)
    assert sum(attack) < 27 * 61


@norms
def test_without_leaving_margins_go_on_falling(norm: str, case: Any) -> None:
    model, images, labels = case

    def margins(leave: bool) -> np.ndarray:
        options = {"norm": norm, "eps": EPS[norm], "queries": 80, "leave": leave}
        return Oracle(model).margins(perturb(Square, model, images, labels, **options), labels)

    stopped, full = margins(True), margins(False)
    assert (full <= stopped).all()
    assert (full < stopped)[stopped < 0].mean() > 0.9
    assert np.array_equal(full[stopped >= 0], stopped[stopped >= 0])


@pytest.mark.parametrize("size", [(1, 3), (3, 3), (4, 9), (9, 4), (12, 12)])
@norms
def test_small_and_oblong_images_are_attacked(norm: str, size: tuple[int, int]) -> None:
    images = np.full((3, 1, *size), 0.5, np.float32)

    def bright(batch: np.ndarray) -> np.ndarray:
        total = batch.reshape(len(batch), -1).sum(1) - images[0].sum()
        return np.stack([np.full_like(total, 0.05), total], axis=1)

    options = {"norm": norm, "eps": 0.3, "queries": 60}
    found = perturb(Square, bright, images, np.zeros(3, np.int64), **options)
    assert (bright(found).argmax(1) == 1).all()
    delta = np.abs(found.astype(np.float64) - images).reshape(3, -1)
    size_of = delta.max(1) if norm == "Linf" else np.sqrt((delta**2).sum(1))
    assert size_of.max() <= 0.3 + 1e-6


def test_squares_shrink_as_published() -> None:
    sides = side_schedule((1, 28, 28), "Linf", 5000)
    assert [sides[i] for i in (0, 10, 11, 51, 201, 501, 1001, 2001, 4001)] == [
        25, 25, 18, 13, 9, 6, 4, 3, 2,
    ]  # fmt: skip
    assert set(side_schedule((3, 32, 32), "L2", 9000)) == {29, 21, 15, 11, 7, 5, 3}


@pytest.mark.parametrize("side", [1, 2, 3, 7])
def test_pattern_has_norm_one_and_two_signs(side: int) -> None:
    assert np.square(pattern(side)).sum() == pytest.approx(1, abs=1e-6)
    assert (pattern(side)[: side // 2] > 0).all() and (pattern(side)[side // 2 :] < 0).all()


class Smooth:
    """Two classes: a score that bends in every direction, and its negative."""

    def __init__(self, bend: float = 1.0, scale: float = 1.0) -> None:
        self.weight, self.bend = np.random.default_rng(4).normal(size=36) * scale, bend
        self.offset = float(self.weight.sum() / 2 + bend * 36 * np.sin(1.5))
        self.asked: list[int] = []

    def __call__(self, images: np.ndarray) -> np.ndarray:
        self.asked.append(len(images))
        x = images.reshape(len(images), 36).astype(np.float64)
        # Sums and no product: BLAS rounds a row differently in batches of different sizes.
        waves = self.bend * np.sin(3 * x) if self.bend else 0.0
        score = (x * self.weight + waves).sum(1) - self.offset
        return np.stack([score, -score], axis=1).astype(np.float32)

    def slope(self, image: np.ndarray) -> np.ndarray:
        """Of the margin of class 0, which is twice the score."""
        return 2 * (self.weight + 3 * self.bend * np.cos(3 * image.ravel())).reshape(image.shape)

    def slopes(self, seed: int = 0, samples: int = 128) -> Slopes:
        return Slopes(Oracle(self), 0, np.random.default_rng(seed), samples)


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(first.ravel() @ second.ravel() / np.linalg.norm(first) / np.linalg.norm(second))


def some_images(count: int = 12) -> np.ndarray:
    return np.random.default_rng(2).uniform(0.3, 0.7, (count, 1, 6, 6)).astype(np.float32)


@pytest.mark.parametrize("guessed", [False, True])
def test_estimate_tends_to_the_analytic_gradient(guessed: bool) -> None:
    model, [image] = Smooth(), some_images(1)
    expected = model.slope(image)
    guess = np.random.default_rng(9).normal(size=image.shape) + expected / 4 if guessed else None
    found = np.mean([model.slopes(seed).at(image, guess) for seed in range(60)], axis=0)
    # 60 x 128 directions in 36 dimensions leave an error of about sqrt(36 / 7680) = 7 %.
    assert np.linalg.norm(found - expected) < 0.1 * np.linalg.norm(expected)


def test_good_guess_spares_queries_at_equal_precision_and_a_bad_one_almost_none() -> None:
    model, [image] = Smooth(), some_images(1)
    truth, draw = model.slope(image), np.random.default_rng(1)
    noise = draw.normal(size=image.shape)
    good = truth + noise * np.std(truth) * 0.7
    bad = noise - truth * np.vdot(noise, truth) / np.sum(truth**2)
    plain = np.mean([cosine(model.slopes(seed).at(image), truth) for seed in range(30)])
    assert plain == pytest.approx((1 + 35 / 128) ** -0.5, abs=0.02)
    helped = []
    for guess, seeds in ((good, range(30)), (bad, range(1)), (0 * bad, range(1))):
        for seed in seeds:
            slopes = model.slopes(seed)
            slopes.at(image, guess)
            model.asked.clear()
            helped.append(cosine(slopes.at(image, guess), truth))
            assert 32 <= sum(model.asked) < 70 if guess is good else sum(model.asked) > 115
    assert np.mean(helped[:30]) > plain - 0.02


def test_flat_model_has_no_slope() -> None:
    slopes = Smooth(bend=0, scale=0).slopes(samples=16)
    for _ in range(2):
        assert not slopes.at(some_images(1)[0], np.ones((1, 6, 6))).any()


def test_spsa_fools_a_linear_model_exactly_where_theory_says() -> None:
    model, images, eps = Smooth(bend=0), some_images(40), 0.03
    scores = model(images)
    labels, margin = scores.argmax(1), np.abs(scores[:, 0] - scores[:, 1])
    reach = 2 * eps * np.abs(model.weight).sum()
    found = perturb(SPSA, model, images, labels, eps=eps, samples=64)
    fooled = model(found).argmax(1) != labels
    clear = np.abs(margin - reach) > 0.03 * reach
    assert np.array_equal(fooled[clear], (margin < reach)[clear])
    assert 5 < fooled.sum() < 35


def test_spsa_starts_at_random_and_leaves_fooled_images() -> None:
    model, images = Smooth(bend=0), some_images()
    labels = model(images).argmax(1)
    found = perturb(SPSA, model, images, labels, eps=0.3, steps=1, samples=4, leave=False)
    moved = np.abs(found - images)  # by the start, and by one step of 0.01
    assert moved.max() > 0.25 and len(np.unique(moved.round(4))) > 30
    for leave, least, most in ((True, 12, 12 * 10 * 17), (False, 12 * 20 * 4, 12 * 20 * 16)):
        model.asked.clear()
        found = perturb(SPSA, model, images, labels, eps=0.5, steps=20, samples=16, leave=leave)
        assert least <= sum(model.asked) <= most and max(model.asked) <= 16
        assert (model(found).argmax(1) != labels).all()


@pytest.mark.parametrize(
    ("kind", "options"), [(Square, {"queries": 5}), (SPSA, {"steps": 4, "samples": 8})]
)
def test_scores_that_are_not_finite_count_as_fooled(kind: Any, options: dict[str, Any]) -> None:
    images, labels = some_images(3), np.zeros(3, np.int64)

    def broken(batch: np.ndarray) -> np.ndarray:
        logits = np.tile(np.array([2, 1, 0], np.float32), (len(batch), 1))
        logits[[not any(np.array_equal(one, image) for image in images) for one in batch]] = np.nan
        return logits

    found = perturb(kind, broken, images, labels, eps=0.1, **options)
    assert np.isnan(broken(found)).all() and np.isfinite(found).all()
    found = perturb(kind, broken, images, labels, eps=0.1, leave=False, **options)
    assert np.isfinite(found).all()


SIGMA, ALPHA = 0.5, 0.001


def at(model: Smooth, distances: np.ndarray) -> np.ndarray:
    """Images at these signed distances from the border of a linear model, (N, 1, 6, 6) float32."""
    normal = model.weight.reshape(1, 6, 6) / np.linalg.norm(model.weight)
    return (0.5 - distances[:, None, None, None] * normal).astype(np.float32)


def certify(
    model: Predict, images: np.ndarray, *, sigma: float = SIGMA, samples: int = 500
) -> tuple[np.ndarray, np.ndarray]:
    """The classes (N,) that are proved, -1 where none is, and their radii (N,)."""
    attack = Smoothing(sigma=[str(sigma)], samples=samples, alpha=str(ALPHA))
    target: Any = SimpleNamespace(predict=lambda images, _meter: model(images))
    batch = Batch(inputs=images, labels=np.zeros(len(images), np.int64))
    [budget] = attack.budgets()
    return attack.certify(target, batch, budget, Search(seeds=range(len(images))))


def test_radii_agree_with_the_closed_form_on_a_linear_classifier() -> None:
    # The smoothed plane is the plane itself, so that an image's exact radius is its distance.
    model, samples = Smooth(bend=0), 10_000
    distances = np.concatenate([np.linspace(-1.2, -0.25, 60), np.linspace(0.25, 1.2, 60)])
    index, radius = certify(model, at(model, distances), samples=samples)
    exact = np.abs(distances)
    assert np.array_equal(index, (distances > 0).astype(int))
    assert (radius > exact).sum() <= 1  # each is too large with probability 0.001
    # The vote is binomial: what is lost to the bound at its mean, and 3.5 standard deviations.
    share = stats.norm.cdf(exact / SIGMA)
    hits = np.floor((share - 3.5 * np.sqrt(share * (1 - share) / samples)) * samples)
    least = stats.norm.ppf(stats.beta.ppf(ALPHA, hits, samples - hits + 1))
    assert (radius >= SIGMA * least - 1e-9).all()
    near = exact < 0.8
    np.testing.assert_allclose(radius[near], exact[near], atol=0.06)
    _, [radius] = certify(model, at(model, np.array([1.0])), sigma=0.05, samples=1000)
    assert radius == pytest.approx(0.05 * stats.norm.ppf(ALPHA ** (1 / 1000)))  # unanimous


def test_images_near_the_border_get_the_right_class_or_none() -> None:
    model, distances = Smooth(bend=0), np.linspace(-0.2, 0.2, 81)
    index, radius = certify(model, at(model, distances), samples=1000)
    certain = index >= 0
    assert 20 < certain.sum() < 81 and not certain[40]
    assert np.array_equal(index[certain], (distances > 0)[certain])
    assert (radius <= np.abs(distances)).all()


def test_noise_has_the_spread_it_should_and_is_not_clipped() -> None:
    seen: list[np.ndarray] = []

    def predict(images: np.ndarray) -> np.ndarray:
        seen.append(images.copy())
        return np.zeros((len(images), 2), np.float32)

    certify(predict, np.full((1, 1, 6, 6), 0.5, np.float32), samples=2000)
    inputs = np.concatenate(seen)
    assert inputs.dtype == np.float32 and len(inputs) == SELECTION + 2000
    assert inputs.std() == pytest.approx(SIGMA, rel=0.01)
    assert inputs.mean() == pytest.approx(0.5, abs=0.01)
    assert inputs.min() < 0 and inputs.max() > 1


@pytest.mark.parametrize("least", [-np.inf, 0.5])
def test_answers_that_are_no_numbers_vote_for_nobody(least: float) -> None:
    def broken(images: np.ndarray) -> np.ndarray:
        logits = np.tile(np.array([1.0, 0.0, 0.0], np.float32), (len(images), 1))
        logits[images[:, 0, 0, 0] > least] = np.inf
        return logits

    index, radius = certify(broken, np.full((1, 1, 6, 6), 0.5, np.float32))
    assert index[0] == -1 and radius[0] == 0

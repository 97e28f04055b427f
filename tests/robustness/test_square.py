from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torchattacks
from torch import nn

from benchmarks.attack_agreement import square_as_kernel
from robustness.attacks.queries import Oracle, Predict
from robustness.attacks.square import Square
from robustness.attacks.square_draws import Draws, Norm, pattern, side_schedule

NORMS: tuple[Norm, ...] = ("Linf", "L2")
EPS = {"Linf": 0.1, "L2": 0.7}
Case = tuple["Rowwise", np.ndarray, np.ndarray]


class Rowwise:
    """A small network in numpy that answers each row alike in every batch, and counts rows."""

    def __init__(self, size: int = 8, channels: int = 2, classes: int = 4) -> None:
        draw = np.random.default_rng(5)
        self.first = draw.normal(size=(channels * size * size, 24)) / 8
        self.second = draw.normal(size=(24, classes))
        self.asked: list[int] = []

    def __call__(self, images: np.ndarray) -> np.ndarray:
        self.asked.append(len(images))
        rows = [np.tanh((row.ravel() - 0.5) @ self.first) @ self.second for row in images]
        return np.stack(rows).astype(np.float32)


def square(
    model: Predict,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    norm: Norm,
    eps: float,
    queries: int,
    leave: bool = True,
) -> np.ndarray:
    attack = Square(norm=norm, eps=[str(eps)], queries=queries)
    seeds = range(len(images))
    return attack.perturb(Oracle(model, None), images, labels, eps=eps, seeds=seeds, leave=leave)


@pytest.fixture
def case() -> Case:
    model = Rowwise()
    images = np.random.default_rng(1).random((30, 2, 8, 8), dtype=np.float32)
    labels = model(images).argmax(1)
    labels[::10] = (labels[::10] + 1) % 4
    model.asked.clear()
    return model, images, labels


def distance(first: np.ndarray, second: np.ndarray, norm: str) -> np.ndarray:
    delta = (first.astype(np.float64) - second).reshape(len(first), -1)
    return np.linalg.norm(delta, np.inf if norm == "Linf" else 2, axis=1)


def test_fooled_images_are_not_asked_about_again_and_the_batch_is_refilled(case: Case) -> None:
    model, images, labels = case
    waiting = np.flatnonzero(model(images).argmax(1) == labels)
    model.asked.clear()
    draws = Draws(images.shape[1:], "Linf", 60, range(30), 8)
    found = Square(eps=["0.1"], queries=60).search(
        Oracle(model, None), images, labels, waiting, draws, eps=0.1, seats=8
    )
    attack = model.asked.copy()
    assert 3 < (model(found).argmax(1) != labels)[waiting].sum() < 27
    assert attack[:20] == [8] * 20
    assert attack == sorted(attack, reverse=True)
    assert sum(attack) < 27 * 61


@pytest.mark.parametrize("norm", NORMS)
def test_without_leaving_margins_go_on_falling(norm: Norm, case: Case) -> None:
    model, images, labels = case

    def margins(leave: bool) -> np.ndarray:
        found = square(
            model, images, labels, norm=norm, eps=EPS[norm], queries=80,
            leave=leave,
        )  # fmt: skip
        logits = model(found)
        own = logits[np.arange(30), labels].copy()
        logits[np.arange(30), labels] = -np.inf
        return own - logits.max(1)

    stopped, full = margins(True), margins(False)
    assert (full <= stopped).all()
    assert (full < stopped)[stopped < 0].mean() > 0.9
    assert np.array_equal(full[stopped >= 0], stopped[stopped >= 0])


class Torch(nn.Module):
    """A convolutional network for images of 28 x 28, and of other sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 5, stride=2), nn.ReLU(), nn.Conv2d(6, 8, 5, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(72, 5),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.body(images) * 30


@pytest.fixture
def network() -> Iterator[Torch]:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        yield Torch().eval()


@pytest.mark.parametrize(
    ("norm", "eps"),
    [
        ("Linf", 0.05),
        ("L2", 0.3),
        pytest.param("Linf", 0.02, marks=pytest.mark.slow),
        pytest.param("L2", 0.6, marks=pytest.mark.slow),
    ],
)
def test_flags_equal_the_plain_kernel_under_its_own_draws(
    norm: Norm, eps: float, network: Torch
) -> None:
    images = torch.rand(60, 1, 28, 28, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        labels = network(images).argmax(1)
    labels[::9] = (labels[::9] + 1) % 5
    kernel = torchattacks.Square(
        network, norm=norm, eps=eps, n_queries=250, n_restarts=1, p_init=0.8, loss="margin",
        resc_schedule=False, seed=7,
    )  # fmt: skip
    with torch.random.fork_rng([]):
        expected = kernel(images, labels)

    def predict(batch: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return network(torch.from_numpy(batch)).numpy()

    attack = Square(norm=norm, eps=[str(eps)], queries=250)
    arrays = images.numpy(), labels.numpy()
    found = square_as_kernel(attack, Oracle(predict, None), *arrays, eps=eps, seed=7)
    theirs = predict(expected.numpy()).argmax(1) != labels.numpy()
    ours = predict(found).argmax(1) != labels.numpy()
    assert np.array_equal(ours, theirs)
    assert 8 < ours.sum() < 56
    assert np.allclose(found[ours], expected.numpy()[ours], atol=1e-5)


@pytest.mark.parametrize("size", [(1, 3), (3, 3), (4, 9), (9, 4), (12, 12)])
@pytest.mark.parametrize("norm", NORMS)
def test_small_and_oblong_images_are_attacked(norm: Norm, size: tuple[int, int]) -> None:
    images = np.full((3, 1, *size), 0.5, np.float32)

    def bright(batch: np.ndarray) -> np.ndarray:
        total = batch.reshape(len(batch), -1).sum(1) - images[0].sum()
        return np.stack([np.full_like(total, 0.05), total], axis=1)

    found = square(bright, images, np.zeros(3, np.int64), norm=norm, eps=0.3, queries=60)
    assert (bright(found).argmax(1) == 1).all()
    assert distance(found, images, norm).max() <= 0.3 + 1e-6


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


def test_scores_that_are_not_finite_count_as_fooled(case: Case) -> None:
    _, images, labels = case

    def broken(batch: np.ndarray) -> np.ndarray:
        logits = np.eye(4, dtype=np.float32)[labels[: len(batch)]]
        logits[np.abs(batch - images[: len(batch)]).max((1, 2, 3)) > 0] = np.nan
        return logits

    found = square(broken, images, labels, norm="Linf", eps=0.1, queries=5)
    assert np.isnan(broken(found)).all()

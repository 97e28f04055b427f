from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torchattacks
from torch import nn

from robustness.attacks.square import square
from robustness.attacks.square_draws import Norm, pattern, side_schedule
from robustness.progress import Cancelled, Meter

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


@pytest.mark.parametrize("norm", NORMS)
def test_finds_misclassified_images_inside_the_ball_and_the_image(norm: Norm, case: Case) -> None:
    model, images, labels = case
    found = square(model, images, labels, norm=norm, eps=EPS[norm], queries=150, seeds=range(30))
    assert found.dtype == np.float32
    assert found.min() >= 0 and found.max() <= 1
    assert distance(found, images, norm).max() <= EPS[norm] + 1e-6
    wrong = model(images).argmax(1) != labels
    fooled = model(found).argmax(1) != labels
    assert fooled[wrong].all() and 3 < (fooled & ~wrong).sum() < 27
    assert np.array_equal(found[wrong], images[wrong])


def test_fooled_images_are_not_asked_about_again_and_the_batch_is_refilled(case: Case) -> None:
    model, images, labels = case
    square(model, images, labels, norm="Linf", eps=0.1, queries=60, seeds=range(30), batch=8)
    clean, attack = model.asked[:4], model.asked[4:]
    assert clean == [8, 8, 8, 6]
    assert attack[:20] == [8] * 20
    assert attack == sorted(attack, reverse=True)
    assert sum(attack) < 27 * 61


@pytest.mark.parametrize("norm", NORMS)
def test_without_leaving_margins_go_on_falling(norm: Norm, case: Case) -> None:
    model, images, labels = case

    def margins(leave: bool) -> np.ndarray:
        found = square(
            model, images, labels, norm=norm, eps=EPS[norm], queries=80, seeds=range(30),
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
    ("norm", "eps"), [("Linf", 0.02), ("Linf", 0.05), ("L2", 0.3), ("L2", 0.6)]
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

    found = square(
        predict, images.numpy(), labels.numpy(), norm=norm, eps=eps, queries=250,
        seeds=[7] * 60, draws="kernel", batch=8,
    )  # fmt: skip
    theirs = predict(expected.numpy()).argmax(1) != labels.numpy()
    ours = predict(found).argmax(1) != labels.numpy()
    assert np.array_equal(ours, theirs)
    assert 8 < ours.sum() < 56
    assert np.allclose(found[ours], expected.numpy()[ours], atol=1e-5)


def test_global_generators_stay_as_they_were(case: Case) -> None:
    model, images, labels = case
    before = torch.get_rng_state(), str(np.random.get_state(legacy=False))
    for draws in ("own", "kernel"):
        square(model, images, labels, norm="L2", eps=0.5, queries=5, seeds=range(30), draws=draws)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == str(np.random.get_state(legacy=False))


def test_meter_counts_every_evaluation_and_stops_within_a_step(case: Case) -> None:
    model, images, labels = case
    meter = Meter(10_000, should_stop=lambda: len(model.asked) == 5)
    with pytest.raises(Cancelled):
        square(
            model, images, labels, norm="Linf", eps=0.1, queries=50, seeds=range(30), meter=meter
        )
    assert meter.done == sum(model.asked) and len(model.asked) == 5


@pytest.mark.parametrize("size", [(1, 3), (3, 3), (4, 9), (9, 4), (12, 12)])
@pytest.mark.parametrize("norm", NORMS)
def test_small_and_oblong_images_are_attacked(norm: Norm, size: tuple[int, int]) -> None:
    images = np.full((3, 1, *size), 0.5, np.float32)

    def bright(batch: np.ndarray) -> np.ndarray:
        total = batch.reshape(len(batch), -1).sum(1) - images[0].sum()
        return np.stack([np.full_like(total, 0.05), total], axis=1)

    found = square(
        bright, images, np.zeros(3, np.int64), norm=norm, eps=0.3, queries=60, seeds=range(3)
    )
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

    found = square(broken, images, labels, norm="Linf", eps=0.1, queries=5, seeds=range(30))
    assert np.isnan(broken(found)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.full((2, 1, 8, 8), 1.5, np.float32)}, r"images must lie in \[0, 1\]"),
        ({"images": np.zeros((2, 1, 8, 8))}, "images must be .* float64"),
        ({"labels": np.zeros(2, np.int32)}, "labels must be .* int32"),
        ({"labels": np.array([0, 9])}, r"labels must lie in \[0, 4\), got 0 to 9"),
        ({"seeds": [1]}, "seeds must be 2 integers"),
        ({"seeds": [1, -1]}, "seeds must be 2 integers"),
        ({"eps": 0.0}, "eps must be positive"),
        ({"queries": 0}, "queries must be at least 1"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"draws": "kernel", "leave": False}, "leave must be true"),
    ],
)
def test_bad_arguments_are_refused_by_name(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "images": np.zeros((2, 1, 8, 8), np.float32), "labels": np.zeros(2, np.int64),
        "norm": "Linf", "eps": 0.1, "queries": 3, "seeds": [0, 1],
    }  # fmt: skip
    call: Callable[..., np.ndarray] = square
    with pytest.raises(ValueError, match=message):
        call(Rowwise(channels=1), **(arguments | change))


def test_no_images_give_no_images() -> None:
    empty = np.zeros((0, 1, 8, 8), np.float32)
    found = square(
        Rowwise(), empty, np.zeros(0, np.int64), norm="Linf", eps=0.1, queries=3, seeds=[]
    )
    assert found.shape == empty.shape

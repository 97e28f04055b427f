import numpy as np
import pytest

from training.order import Order


def epoch(order: Order, number: int) -> np.ndarray:
    start = number * order.steps_per_epoch
    return np.stack([order.indices(step) for step in range(start, start + order.steps_per_epoch)])


def test_every_epoch_is_another_order_of_the_samples() -> None:
    order = Order(23, 5, seed=0)
    first, second = epoch(order, 0), epoch(order, 1)
    assert first.shape == (4, 5)
    assert len(set(first.ravel())) == 20 and first.max() < 23
    assert not np.array_equal(first, second)


def test_any_step_can_be_asked_for_alone() -> None:
    steps = range(8)
    in_order = Order(20, 5, seed=1)
    expected = [in_order.indices(step) for step in steps]
    for step in reversed(steps):
        assert np.array_equal(Order(20, 5, seed=1).indices(step), expected[step])
    assert not np.array_equal(Order(20, 5, seed=2).indices(0), expected[0])


def test_lengths_are_bucketed_without_losing_a_sample_or_chance() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 400)
    order = Order(400, 8, seed=0, lengths=lengths)
    batches = epoch(order, 0)
    assert sorted(batches.ravel()) == list(range(400))
    spread = np.ptp(lengths[batches], axis=1).mean()
    assert spread < 0.1 * np.ptp(lengths[epoch(Order(400, 8, seed=0), 0)], axis=1).mean()
    longest = lengths[batches].max(axis=1)
    assert not np.array_equal(longest, np.sort(longest))


def test_batch_larger_than_the_split_is_refused() -> None:
    with pytest.raises(ValueError, match="at most the 4 training samples, got 5"):
        Order(4, 5, seed=0)

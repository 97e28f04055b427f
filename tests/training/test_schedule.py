from typing import Any

import pytest

from training.optimizer import Schedule
from training.recipe import TrainRecipe


def schedule(steps_per_epoch: int = 10, **train: Any) -> Schedule:
    train = {"lr": 1.0} | train
    return Schedule(train=TrainRecipe(**train), steps_per_epoch=steps_per_epoch)


def test_warm_up_then_half_a_cosine_to_zero() -> None:
    rates = schedule(epochs=10, warmup_epochs=2)
    assert rates.total_steps == 100
    assert [rates.rate(step) for step in (0, 20, 60, 100)] == pytest.approx([1 / 21, 1, 0.5, 0])
    assert all(rates.rate(step) < rates.rate(step + 1) for step in range(20))
    assert all(rates.rate(step) > rates.rate(step + 1) for step in range(20, 99))


def test_linear_decay_in_steps() -> None:
    rates = schedule(steps=50, warmup_steps=10, schedule="linear")
    assert rates.total_steps == 50
    assert [rates.rate(step) for step in (10, 20, 30, 50)] == pytest.approx([1, 0.75, 0.5, 0])


def test_first_and_last_rates_and_cool_down() -> None:
    rates = schedule(epochs=12, warmup_epochs=2, warmup_lr=0.1, min_lr=0.2, cooldown_epochs=2)
    assert rates.rate(0) == pytest.approx(0.1 + 0.9 / 21)
    assert rates.rate(20) == 1 and rates.rate(60) == pytest.approx(0.6)
    assert [rates.rate(step) for step in (100, 110, 119)] == pytest.approx([0.2, 0.2, 0.2])


def test_rate_starts_again_at_a_restart() -> None:
    rates = schedule(epochs=10, warmup_epochs=0, restarts=[6], restart_decay=0.5)
    found = [rates.rate(step) for step in (0, 30, 60, 80, 100)]
    assert found == pytest.approx([1, 0.5, 0.5, 0.25, 0])
    assert rates.rate(59) < 1e-2


def test_constant_rate_stays_at_the_peak() -> None:
    rates = schedule(steps=30, warmup_steps=4, schedule="constant")
    assert rates.rate(0) < 1 and {rates.rate(step) for step in range(4, 30)} == {1}


def test_without_warm_up_the_first_step_is_at_the_peak() -> None:
    assert schedule(epochs=3, warmup_epochs=0).rate(0) == 1

import numpy as np
import torch

import models
from training.draws import Draws, seed_model, source
from training.order import Order


def draw(part: slice = slice(None), step: int = 0, purpose: str = "augment") -> list[torch.Tensor]:
    draws = Draws(source(7, purpose, step), 8, part)
    return [draws.uniform(3), draws.normal(2, 2), draws.integers(2, 5, 4), draws.uniform()]


def test_a_sample_draws_the_same_however_the_batch_is_shared_and_each_step_its_own() -> None:
    halves = zip(draw(slice(0, 4)), draw(slice(4, 8)), strict=True)
    for whole, (first, second) in zip(draw(), halves, strict=True):
        assert torch.equal(whole, torch.cat((first, second)))
    assert not torch.equal(draw()[0], draw(step=1)[0])
    assert not torch.equal(draw()[0], draw(purpose="attack")[0])


def test_draws_keep_their_ranges() -> None:
    draws = Draws(source(0, "augment"), 4000)
    uniform, integers, normal = draws.uniform(), draws.integers(2, 5), draws.normal()
    assert uniform.min() >= 0 and uniform.max() < 1
    assert set(integers.tolist()) == {2, 3, 4}
    assert abs(float(normal.mean())) < 0.1 and abs(float(normal.std()) - 1) < 0.05
    assert 0 <= draws.chance() < 1 and 0 <= draws.beta(0.8) <= 1


def test_model_draws_differ_by_process_and_repeat_by_step() -> None:
    drawn = []
    for place in ((3, 0), (3, 1), (4, 0), (3, 0)):
        seed_model(0, *place)
        drawn.append(float(torch.rand(())))
    assert drawn[0] == drawn[3] and len(set(drawn)) == 3


def test_random_metrics_repeat_by_step() -> None:
    size = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "num_heads": 2, "depth": 3}
    model = models.build("deit_tiny_elliptical", **size, estimator="random").eval()
    logits = []
    for step in (1, 2, 1):
        seed_model(0, step, model=model)
        logits.append(model(torch.ones(2, 3, 8, 8)))
    assert torch.equal(logits[0], logits[2]) and not torch.equal(logits[0], logits[1])


def epoch(order: Order, number: int) -> np.ndarray:
    start = number * order.steps_per_epoch
    return np.stack([order.indices(step) for step in range(start, start + order.steps_per_epoch)])


def test_every_epoch_is_another_order_of_the_samples() -> None:
    order = Order(23, 5, seed=0)
    first, second = epoch(order, 0), epoch(order, 1)
    assert first.shape == (4, 5)
    assert len(set(first.ravel())) == 20 and first.max() < 23
    assert not np.array_equal(first, second)


def test_lengths_are_bucketed_without_losing_a_sample_or_chance() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 400)
    order = Order(400, 8, seed=0, lengths=lengths)
    batches = epoch(order, 0)
    assert sorted(batches.ravel()) == list(range(400))
    spread = np.ptp(lengths[batches], axis=1).mean()
    assert spread < 0.1 * np.ptp(lengths[epoch(Order(400, 8, seed=0), 0)], axis=1).mean()
    longest = lengths[batches].max(axis=1)
    assert not np.array_equal(longest, np.sort(longest))

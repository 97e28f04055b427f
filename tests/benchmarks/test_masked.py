"""Masked models keep the classes of the network inside, and mislead whoever follows them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.support.attacked import GRADIENT, attacked, right
from benchmarks.support.masked import Purifying, Saturated, Sparse
from robustness.attacks.base import Batch
from robustness.attacks.pgd import PGD

SIDE, CLASSES = 6, 4
MASKS: list[Callable[[nn.Module], nn.Module]] = [
    Saturated, lambda inner: Sparse(inner, SIDE * SIDE, CLASSES), Purifying
]  # fmt: skip


@pytest.fixture
def inner() -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, CLASSES)).eval()


@pytest.fixture
def images() -> Tensor:
    return torch.rand((200, 1, SIDE, SIDE), generator=torch.Generator().manual_seed(1))


def gradient(model: nn.Module, images: Tensor) -> Tensor:
    images = images.clone().requires_grad_(True)
    logits = model(images)
    [found] = torch.autograd.grad(logits.gather(1, logits.argmax(1)[:, None]).sum(), images)
    return found


@pytest.mark.parametrize("mask", MASKS)
def test_the_class_stays_that_of_the_network(
    mask: Callable[[nn.Module], nn.Module], inner: nn.Module, images: Tensor
) -> None:
    assert torch.equal(mask(inner)(images).argmax(1), inner(images).argmax(1))


def test_saturated_scores_are_flat(inner: nn.Module, images: Tensor) -> None:
    masked = Saturated(inner)
    far = inner(images).topk(2, dim=1).values.diff(dim=1).abs()[:, 0] > 0.3
    assert far.sum() > 10
    assert bool((gradient(masked, images)[far] == 0).all())
    near = images + 1e-3
    assert torch.equal(masked(near)[far].amax(1), masked(images)[far].amax(1))


def test_gradients_of_sparse_scores_promise_what_no_step_keeps(
    inner: nn.Module, images: Tensor
) -> None:
    masked = Sparse(inner, SIDE * SIDE, CLASSES)
    slope = gradient(masked, images)
    step = 0.3 * slope.sign()
    promised = (slope * step).sum((1, 2, 3))
    gained = (masked(images + step) - masked(images)).amax(1).detach()
    assert float((gained.abs() / promised).median()) < 0.5


def test_purified_scores_lead_by_more(inner: nn.Module, images: Tensor) -> None:
    lead = [m(images).topk(2, dim=1).values.diff(dim=1).abs() for m in (inner, Purifying(inner))]
    assert bool((lead[1] > lead[0]).all())


def test_passes_are_counted_and_blocks_kept(
    inner: nn.Module, images: Tensor, tmp_path: Path
) -> None:
    labels = inner(images).argmax(1).numpy()
    batch = Batch(inputs=images[:60].numpy(), labels=labels[:60])
    attack = PGD(name="pgd", eps=["0.001"], steps=5)
    found = attacked(inner, batch, attack, kept=tmp_path)
    assert found.right.all() and found.held.any()
    assert found.passes.gradients <= 5 * 60 < found.passes.cost - GRADIENT * 4 * 60
    assert np.array_equal(found.held, right(inner, found.made, batch.labels))
    again = attacked(nn.Identity(), batch, attack, kept=tmp_path)  # nothing is asked of it
    assert again.passes == found.passes and np.array_equal(again.made, found.made)

"""Screen finds what APGD-CE finds, and what masks hide from AutoAttack's losses."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.support.attacked import attacked
from benchmarks.support.masked import Purifying, Saturated
from robustness.attacks.apgd import APGDCE
from robustness.attacks.base import Batch, LinfOrL2, Search
from robustness.attacks.boundary import Boundary
from robustness.attacks.screen import Screen
from tests.robustness.conftest import Rowwise, image_target


class Scaled(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        return 1000 * self.inner(images)


@pytest.fixture
def model() -> nn.Module:
    return Rowwise().eval().requires_grad_(False)


@pytest.fixture
def batch(model: nn.Module) -> Batch:
    images = np.random.default_rng(2).uniform(0.2, 0.8, (12, 1, 8, 8)).astype(np.float32)
    labels = model(torch.from_numpy(images)).argmax(1).numpy()
    return Batch(inputs=images, labels=labels)


EPS = ["0.015"]


def test_it_finds_all_that_apgd_finds(model: nn.Module, batch: Batch) -> None:
    alone = attacked(model, batch, APGDCE(name="apgd-ce", eps=EPS))
    found = attacked(model, batch, Screen(name="screen", eps=EPS))
    assert 0 < alone.held.sum() < len(alone.held)
    assert not (found.held & ~alone.held).any()


@pytest.mark.parametrize("mask", [Scaled, Saturated, Purifying])
def test_masked_scores_hide_nothing(mask: type[nn.Module], model: nn.Module, batch: Batch) -> None:
    hidden = mask(model)
    alone = attacked(hidden, batch, APGDCE(name="apgd-ce", eps=EPS))
    found = attacked(hidden, batch, Screen(name="screen", eps=EPS))
    plain = attacked(model, batch, Screen(name="screen", eps=EPS))
    assert alone.held.sum() > found.held.sum() == plain.held.sum()


@pytest.mark.parametrize(("norm", "dual"), [("Linf", 1), ("L2", 2)])
def test_of_a_linear_model_the_nearest_boundary_is_found(norm: LinfOrL2, dual: int) -> None:
    """The distance to it is the margin over the dual norm of the weights."""
    weight = torch.randn((1, 64), generator=torch.Generator().manual_seed(0))
    linear = nn.Linear(64, 2)
    model = nn.Sequential(nn.Flatten(), linear).eval()
    with torch.no_grad():
        linear.weight.copy_(torch.cat((weight, -weight)))
        linear.bias.copy_(torch.stack((0.2 - weight.sum() / 2, weight.sum() / 2)))
    images = np.full((1, 1, 8, 8), 0.5, np.float32)
    distance = 0.2 / float(torch.linalg.vector_norm(2 * weight, dual))
    batch, target = Batch(inputs=images, labels=np.zeros(1, np.int64)), image_target(model, 2)
    assert target.predict(images).argmax() == 0
    for share, fooled in ((0.99, False), (1.01, True)):
        attack = Boundary(name="boundary", norm=norm, eps=[str(share * distance)], steps=10)
        made = attack.run(target, batch, attack.budgets()[0], Search(seeds=[0]))
        assert (target.predict(made.images).argmax() == 1) == fooled

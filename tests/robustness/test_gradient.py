"""Gradient attacks where theory knows the answer, and on broken models."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from data.sources import load_inputs
from robustness.attacks.base import Batch, Budget, Norm, Search
from robustness.attacks.tensors import attackable, project
from robustness.spec import ATTACKS
from tests.robustness.conftest import Linear, image_target, make_images, make_target

EPS = 8 / 255
ALL: list[tuple[str, Norm]] = [
    ("fgsm", "Linf"), ("pgd", "Linf"), ("apgd-ce", "Linf"), ("apgd-ce", "L2"),
    ("apgd-t", "Linf"), ("apgd-t", "L2"), ("fab-t", "Linf"), ("fab-t", "L2"),
    ("apgd-ce", "L1"), ("apgd-t", "L1"),
    ("ddn", "L2"), ("fmn", "Linf"), ("fmn", "L1"), ("pdpgd", "Linf"), ("pdpgd", "L1"),
    ("sigma-zero", "L0"),
]  # fmt: skip
ORDERS = {"Linf": float("inf"), "L2": 2, "L1": 1, "L0": 0}
DUALS = {"Linf": 1, "L2": 2, "L1": float("inf")}
Case = tuple[Linear, Tensor, Tensor, Tensor]


def attack(name: str, norm: str = "Linf", steps: int = 20) -> Any:
    options = {} if name == "fgsm" else {"steps": steps}
    eps = "5" if norm == "L0" else EPS
    return ATTACKS[name].model_validate({"name": name, "norm": norm, "eps": [eps], **options})


@pytest.fixture
def case() -> Case:
    """A linear model of two classes, images, random labels, and by how much these lead."""
    target, images = make_target(2), make_images(64)
    inputs = torch.from_numpy(load_inputs(images, target.image_spec))
    labels, model = torch.from_numpy(images.labels), cast(Linear, target.torch_model)
    return model, inputs, labels, margins(model, inputs, labels)


def margins(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    logits, rows = model(images).detach(), torch.arange(len(labels))
    return logits[rows, labels] - logits[rows, 1 - labels]


def run(
    model: nn.Module, images: Tensor, labels: Tensor, spec: Any, *, eps: float = EPS, leave: bool
) -> Tensor:
    budget = Budget(kind=spec.norm, value=eps, text="eps")
    clean = Batch(inputs=images.numpy(), labels=labels.numpy())
    search = Search(seeds=range(len(images)), leave=leave)
    return torch.from_numpy(spec.run(image_target(model), clean, budget, search).images)


@pytest.mark.parametrize("leave", [True, False])
@pytest.mark.parametrize("name", ["fgsm", "pgd", "apgd-ce"])
def test_two_class_linear_model_falls_exactly_where_theory_says(
    name: str, leave: bool, case: Case
) -> None:
    model, inputs, labels, own = case
    weight = model.linear.weight.detach()
    # An l-infinity ball of radius eps moves the margin by at most eps times the dual norm.
    reach = EPS * (weight[0] - weight[1]).abs().sum()
    adversarial = run(model, inputs, labels, attack(name), leave=leave)
    fooled = model(adversarial).argmax(1) != labels
    clear = (own - reach).abs() > 1e-3
    assert torch.equal(fooled[clear], (own < reach)[clear])
    assert 0 < int((own < reach).sum()) < len(labels)
    whole = ~fooled if leave or name == "apgd-ce" else torch.ones_like(fooled)
    after = margins(model, adversarial, labels)
    torch.testing.assert_close(after[whole], (own - reach)[whole], atol=1e-3, rtol=0)


def test_the_l1_projection_is_the_nearest_point_of_ball_and_box() -> None:
    draw = torch.Generator().manual_seed(0)
    clean = torch.rand((200, 3, 4, 4), generator=draw)
    clean[:50] = (clean[:50] > 0.5).float()  # at the walls
    noise = (
        torch.randn(clean.shape, generator=draw) * torch.logspace(-2, 0.5, 200)[:, None, None, None]
    )
    change = (clean + noise).double() - clean.double()
    low, high = change.new_zeros(200, 1, 1, 1), change.abs().amax((1, 2, 3), keepdim=True)

    def shrunk(amount: Tensor) -> Tensor:
        less = (change.abs() - amount).clamp(min=0) * change.sign()
        return less.maximum(-clean.double()).minimum(1 - clean.double())

    inside = shrunk(low).abs().sum((1, 2, 3), keepdim=True) <= 2
    for _ in range(60):  # the amount by which the nearest change shrinks, by bisection
        middle = (low + high) / 2
        long = shrunk(middle).abs().sum((1, 2, 3), keepdim=True) > 2
        low, high = middle.where(long, low), high.where(long, middle)
    found = project(clean + noise, clean, norm="L1", eps=2.0)
    moved = found.double() - clean.double()
    torch.testing.assert_close(moved, shrunk(high.where(~inside, 0.0)), atol=1e-7, rtol=0)
    assert float(moved.abs().sum((1, 2, 3)).max()) <= 2 + 1e-12
    assert 0 < int(inside.sum()) < 200 and bool(((found >= 0) & (found <= 1)).all())


def test_l1_spends_its_budget_on_the_best_pixels_of_a_linear_model(case: Case) -> None:
    model, inputs, labels = case[0], case[1], torch.zeros(64, dtype=torch.int64)
    model.linear.bias.data[0] += 4  # so that a change of several pixels decides
    own, flat, eps = margins(model, inputs, labels), inputs.flatten(1), 1.5
    downwards = (model.linear.weight[1] - model.linear.weight[0]).detach().expand_as(flat)
    size, order = downwards.abs().sort(dim=1, descending=True)
    room = torch.where(downwards > 0, 1 - flat, flat).gather(1, order)
    spent = (eps - (room.cumsum(1) - room)).clamp(min=0).minimum(room)
    best = own - (size * spent).sum(1)  # the fractional knapsack, solved by greed
    adversarial = run(model, inputs, labels, attack("apgd-ce", "L1", 40), eps=eps, leave=False)
    after = margins(model, adversarial, labels)
    fooled = model(adversarial).argmax(1) != labels
    assert bool((after >= best - 1e-4).all()) and 0 < int((best > 0).sum()) < len(labels)
    assert torch.equal(fooled[best.abs() > 0.1], (best < 0)[best.abs() > 0.1])
    torch.testing.assert_close(after[~fooled], best[~fooled], atol=1e-4, rtol=0)


@pytest.mark.parametrize(("name", "norm"), [c for c in ALL if ATTACKS[c[0]].info.minimal][:-1])
def test_distance_to_a_linear_boundary_is_the_margin_over_the_dual_norm(
    name: str, norm: str, case: Case
) -> None:
    model, inputs, labels, own = case
    weight = (model.linear.weight[0] - model.linear.weight[1]).detach()
    exact = (own / weight.norm(DUALS[norm])).clamp(0)
    with attackable(model) as ask:
        steps = {"fab-t": 20, "pdpgd": 150}.get(name, 100)
        found = attack(name, norm, steps).nearest(ask, inputs, labels, until=0.0, leave=True)
    nearest, distance = found
    inside = exact < 0.3  # further out the walls of [0, 1] matter
    assert torch.equal(distance == 0, own < 0)
    assert bool((distance[inside] >= exact[inside] - 1e-6).all())
    assert bool((distance[inside] <= 1.06 * exact[inside] + 1e-6).all())
    torch.testing.assert_close((nearest - inputs).flatten(1).norm(ORDERS[norm], dim=1), distance)


@pytest.mark.parametrize("channels", [1, 3])
def test_fewest_pixels_of_a_linear_model_are_those_that_gain_most(channels: int) -> None:
    """Each pixel may go to a corner of its cube; the largest gains together pass the margin."""
    draw = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36 * channels, 2))
    weight = torch.randn((2, 36 * channels), generator=draw)
    model[1].load_state_dict({"weight": weight, "bias": -weight.sum(1) / 2})
    images = torch.rand((40, channels, 6, 6), generator=draw)
    labels = model(images).argmax(1)
    slope = (weight[1] - weight[0]).view(channels, 6, 6) * (1 - 2 * labels)[:, None, None, None]
    gains = torch.where(slope > 0, slope * (1 - images), -slope * images).sum(1).flatten(1)
    reached = gains.sort(1, descending=True)[0].cumsum(1)
    exact = (reached <= margins(model, images, labels)[:, None]).sum(1) + 1
    with attackable(model) as ask:
        spec = attack("sigma-zero", "L0", 200)
        nearest, distance = spec.nearest(ask, images, labels, until=0.0, leave=True)
    assert bool((model(nearest).argmax(1) != labels).all())
    assert torch.equal(distance, (nearest != images).any(1).flatten(1).sum(1).float())
    assert bool((distance >= exact).all())
    assert bool((distance <= exact + 1).all()) and float((distance == exact).float().mean()) > 0.8


def test_steps_of_fab_come_nearer_to_a_curved_boundary(case: Case) -> None:
    _, inputs, labels, _ = case
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        hidden = nn.Linear(inputs[0].numel(), 16)
        hidden.weight.data *= 10
        model = nn.Sequential(nn.Flatten(), hidden, nn.Tanh(), nn.Linear(16, 2))
    with attackable(model) as ask:
        early, late = (
            attack("fab-t", steps=steps).nearest(ask, inputs, labels, until=0.0, leave=True)[1]
            for steps in (2, 20)
        )
    assert bool((late <= early).all())
    assert late[late > 0].mean() < 0.95 * early[late > 0].mean()


class Constant(nn.Module):
    """The same answer to everything."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :10] * 0 + self.answer


class Edge(nn.Module):
    """Infinity, the gradient of a root at 0, is multiplied by 0."""

    def forward(self, images: Tensor) -> Tensor:
        above = images.flatten(1)[:, :9] - 0.5
        roots = (above * (above > 0)).sqrt()
        return torch.cat([torch.ones(len(images), 1), roots], dim=1)


@pytest.mark.parametrize(
    "model",
    [
        Constant(torch.arange(10.0).flip(0)),
        Constant(torch.full((10,), torch.nan)),
        Constant(torch.ones(10)),
        Edge(),
    ],
)
@pytest.mark.parametrize(("name", "norm"), ALL)
def test_a_blind_or_broken_model_yields_finite_images_in_the_ball(
    name: str, norm: str, model: nn.Module
) -> None:
    images, labels = torch.full((4, 1, 8, 8), 0.49), torch.zeros(4, dtype=torch.int64)
    for leave in (True, False):
        found = run(model, images, labels, attack(name, norm, 4), eps=0.3, leave=leave)
        change = (found - images).flatten(1)
        assert torch.isfinite(found).all()
        assert float(change.norm(ORDERS[norm], dim=1).max()) <= 0.3 + 1e-6


@pytest.mark.parametrize("name", ["fgsm", "pgd", "apgd-ce", "apgd-t", "fab-t"])
def test_a_model_without_gradients_is_refused(name: str) -> None:
    class Served(Edge):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images).detach()

    images, labels = torch.full((4, 1, 8, 8), 0.49), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match="logits have no gradient"):
        run(Served(), images, labels, attack(name), leave=True)

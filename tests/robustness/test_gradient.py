import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torchattacks
from torch import Tensor, nn

from data.sources import ImageSet, load_inputs
from robustness.attacks.gradient import perturb
from robustness.progress import Cancelled, Meter
from robustness.spec import AttackSpec
from robustness.target import Target

EPS = 8 / 255
Batch = tuple[Any, Tensor, Tensor]  # the linear twin, images, labels


def attack(name: str, **fields: int) -> AttackSpec:
    return AttackSpec.model_validate({"name": name, "eps": ["8/255"], **fields})


@pytest.fixture
def batch(make_target: Callable[..., Target], make_images: Callable[..., ImageSet]) -> Batch:
    target = make_target(2)
    images = make_images(64)
    assert images.labels is not None and target.twin is not None
    inputs = torch.from_numpy(load_inputs(images, target.image_spec))
    return target.twin, inputs, torch.from_numpy(images.labels)


@pytest.mark.parametrize("name", ["fgsm", "pgd"])
def test_two_class_linear_model_falls_exactly_where_theory_says(name: str, batch: Batch) -> None:
    twin, inputs, labels = batch
    weight = twin.linear.weight.detach()
    logits = twin(inputs).detach()
    rows = torch.arange(len(labels))
    own_margin = logits[rows, labels] - logits[rows, 1 - labels]
    # An l-infinity ball of radius eps moves the margin by at most eps times the dual norm.
    reach = EPS * (weight[0] - weight[1]).abs().sum()
    adversarial = perturb(twin, inputs, labels, attack=attack(name), eps=EPS, seed=0)
    after = twin(adversarial).detach()
    margin = after[rows, labels] - after[rows, 1 - labels]
    torch.testing.assert_close(margin, own_margin - reach, atol=1e-4, rtol=0)
    clear = (own_margin - reach).abs() > 1e-3
    fooled = after.argmax(1) != labels
    assert torch.equal(fooled[clear], (own_margin < reach)[clear])
    assert 0 < int((own_margin < reach).sum()) < len(labels)


@pytest.mark.parametrize("name", ["fgsm", "pgd"])
@pytest.mark.parametrize("eps", [1 / 255, 0.3, 1.0])
def test_perturbation_stays_in_the_ball_and_in_the_image(
    name: str, eps: float, batch: Batch
) -> None:
    twin, inputs, labels = batch
    adversarial = perturb(twin, inputs, labels, attack=attack(name), eps=eps, seed=0)
    assert float((adversarial - inputs).abs().max()) <= eps + 1e-6
    assert float(adversarial.min()) >= 0 and float(adversarial.max()) <= 1
    assert torch.isfinite(adversarial).all()


def test_flags_equal_the_plain_kernel_under_its_own_draws(batch: Batch) -> None:
    twin, inputs, labels = batch
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        expected = torchattacks.PGD(twin, eps=EPS, alpha=0.15 * EPS, steps=20)(inputs, labels)
    found = perturb(twin, inputs, labels, attack=attack("pgd"), eps=EPS, seed=5)
    assert torch.equal(found, expected)


def test_same_seed_repeats_and_another_one_differs(batch: Batch) -> None:
    twin, inputs, labels = batch
    spec = attack("pgd", steps=2)
    first = perturb(twin, inputs, labels, attack=spec, eps=EPS, seed=1)
    again = perturb(twin, inputs, labels, attack=spec, eps=EPS, seed=1)
    other = perturb(twin, inputs, labels, attack=spec, eps=EPS, seed=2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


class Failing(nn.Module):
    """Works twice, then raises."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 2:
            raise RuntimeError("broken model")
        return self.inner(images)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_outside_the_attack_changes(fails: bool, batch: Batch) -> None:
    twin, inputs, labels = batch
    model = Failing(twin) if fails else twin
    model.train()
    twin.linear.eval()  # a mixture of modes, as with a frozen BatchNorm
    twin.linear.bias.requires_grad_(False)
    gradient = torch.ones_like(twin.linear.weight)
    twin.linear.weight.grad = gradient
    modes = [part.training for part in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    generators = torch.get_rng_state(), random.getstate(), str(np.random.get_state())

    def run() -> None:
        perturb(model, inputs, labels, attack=attack("pgd"), eps=EPS, seed=0)

    with torch.no_grad():
        if fails:
            with pytest.raises(RuntimeError, match="broken model"):
                run()
        else:
            run()
        assert not torch.is_grad_enabled()
    assert [part.training for part in model.modules()] == modes
    assert twin.linear.weight.requires_grad and not twin.linear.bias.requires_grad
    assert twin.linear.weight.grad is gradient and bool((gradient == 1).all())
    assert twin.linear.bias.grad is None
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert (random.getstate(), str(np.random.get_state())) == generators[1:]


def test_dropout_is_silent_in_a_model_left_in_training_mode(batch: Batch) -> None:
    twin, inputs, labels = batch
    expected = perturb(twin, inputs, labels, attack=attack("fgsm"), eps=EPS, seed=0)
    found = perturb(twin.train(), inputs, labels, attack=attack("fgsm"), eps=EPS, seed=0)
    assert torch.equal(found, expected)
    assert twin.training


def test_cancel_is_heeded_within_one_step(batch: Batch) -> None:
    twin, inputs, labels = batch
    asked: list[int] = []

    def should_stop() -> bool:
        asked.append(1)
        return len(asked) > 3

    meter = Meter(20 * len(inputs), should_stop=should_stop)
    with pytest.raises(Cancelled):
        perturb(twin, inputs, labels, attack=attack("pgd"), eps=EPS, seed=0, meter=meter)
    assert meter.done == 3 * len(inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x + 1, y), r"images must lie in \[0, 1\]"),
        (lambda x, y: (x * torch.nan, y), r"images must lie in \[0, 1\]"),
        (lambda x, y: (x.double(), y), "float32"),
        (lambda x, y: (x, y.int()), "int64"),
        (lambda x, y: (x, y[:-1]), "int64"),
    ],
)
def test_meaningless_input_is_refused(change: Callable, message: str, batch: Batch) -> None:
    twin, inputs, labels = batch
    images, truth = change(inputs, labels)
    with pytest.raises(ValueError, match=message):
        perturb(twin, images, truth, attack=attack("fgsm"), eps=EPS, seed=0)

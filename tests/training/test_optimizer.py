from typing import Any

import pytest
import torch
from torch import nn

import models
from training.optimizer import Average, Schedule, build_optimizer
from training.recipe import TrainRecipe


@pytest.mark.parametrize(
    ("name", "kind"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam)]
)
def test_only_matrices_decay(name: Any, kind: type) -> None:
    with torch.device("meta"):
        model = models.build("fan_tiny", img_size=32, patch_size=4, num_classes=10)
    adam: dict[str, Any] = {"optimizer": name, "betas": (0.9, 0.98), "adam_eps": 1e-9}
    train = TrainRecipe(epochs=1, lr=0.1, weight_decay=0.5, **adam)
    optimizer = build_optimizer(model, train)
    assert type(optimizer) is kind
    decayed, others = optimizer.param_groups
    assert (decayed["weight_decay"], others["weight_decay"], decayed["lr"]) == (0.5, 0, 0.1)
    assert decayed["betas"] == (0.9, 0.98) and decayed["eps"] == 1e-9
    kept = {id(parameter) for parameter in others["params"]}
    named = dict(model.named_parameters())
    assert "blocks.0.mlp.temperature" in named
    for part in ("temperature", "bias", "norm", "cls_token"):
        own = [id(parameter) for key, parameter in named.items() if part in key]
        assert own and kept.issuperset(own)
    assert id(named["blocks.0.attn.qkv.weight"]) not in kept
    assert len(decayed["params"]) + len(kept) == len(named)


def test_sgd_takes_its_momentum_and_a_polynomial_ends_at_the_least_rate() -> None:
    model = models.build("bag_of_tokens", vocab_size=5, embed_dim=4)
    rates: dict[str, Any] = {"lr": 0.1, "min_lr": 0.01, "warmup_epochs": 0}
    train = TrainRecipe(steps=10, optimizer="sgd", momentum=0.8, schedule="polynomial", **rates)
    optimizer = build_optimizer(model, train)
    assert type(optimizer) is torch.optim.SGD
    assert {group["momentum"] for group in optimizer.param_groups} == {0.8}
    schedule = Schedule(train=train, steps_per_epoch=5)
    for step in (0, 3, 10):
        assert schedule.rate(step) == pytest.approx(0.01 + 0.09 * (1 - step / 10) ** 0.9)


def test_learning_rate_has_factors_by_the_names_of_parameters() -> None:
    model = models.build("bag_of_tokens", vocab_size=5, embed_dim=4)
    train = TrainRecipe(steps=1, lr=0.1, lr_factors={"head.bias": 3, "head.*": 0.5})
    groups = build_optimizer(model, train).param_groups
    factors = {id(each): group["factor"] for group in groups for each in group["params"]}
    found = {name: factors[id(each)] for name, each in model.named_parameters()}
    assert found == {"embedding.weight": 1, "head.weight": 0.5, "head.bias": 3}
    decay = {group["factor"]: group["weight_decay"] for group in groups if group["params"]}
    assert decay == {1: 0.05, 0.5: 0.05, 3: 0}
    with pytest.raises(ValueError, match="must name parameters of the model, got 'blocks"):
        build_optimizer(model, TrainRecipe(steps=1, lr_factors={"blocks.*": 2}))
    with pytest.raises(ValueError, match="lr_factors must be positive numbers, got 0 of head"):
        TrainRecipe(steps=1, lr_factors={"head": 0})


def test_average_follows_the_weights() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    weight = model[0].weight
    assert isinstance(weight, nn.Parameter)
    average = Average(model, 0.5)
    expected = weight.detach().clone()
    for step, value in enumerate((1.0, 3.0, -2.0)):
        with torch.no_grad():
            weight.fill_(value)
        model[1].num_batches_tracked.fill_(step)  # type: ignore[union-attr]
        average.update(model, step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    assert torch.allclose(average.state["0.weight"], expected)
    assert average.state["1.num_batches_tracked"] == 2
    with average.applied(model):
        assert torch.allclose(weight, expected)
    assert weight == -2.0


@pytest.mark.parametrize(
    ("train", "steps", "expected"),
    [
        ({"epochs": 10, "warmup_epochs": 2}, (0, 20, 60, 100), (1 / 21, 1, 0.5, 0)),
        (
            {"steps": 50, "warmup_steps": 10, "schedule": "linear"},
            (10, 20, 30, 50),
            (1, 0.75, 0.5, 0),
        ),
        (
            {
                "epochs": 12, "warmup_epochs": 2, "warmup_lr": 0.1, "min_lr": 0.2,
                "cooldown_epochs": 2,
            },
            (0, 20, 60, 100, 110, 119),
            (0.1 + 0.9 / 21, 1, 0.6, 0.2, 0.2, 0.2),
        ),
        (
            {"epochs": 10, "warmup_epochs": 0, "restarts": [6], "restart_decay": 0.5},
            (0, 30, 60, 80, 100),
            (1, 0.5, 0.5, 0.25, 0),
        ),
        ({"steps": 30, "warmup_steps": 4, "schedule": "constant"}, range(3, 30), [0.8] + [1] * 26),
    ],
)  # fmt: skip
def test_rate_rises_and_decays_to(train: dict[str, Any], steps: Any, expected: Any) -> None:
    rates = Schedule(train=TrainRecipe(lr=1.0, **train), steps_per_epoch=10)
    assert rates.total_steps == train.get("steps", 10 * train.get("epochs", 0))
    assert [rates.rate(step) for step in steps] == pytest.approx(list(expected))
    warmup = int(rates.warmup_steps)
    assert all(rates.rate(step) < rates.rate(step + 1) for step in range(warmup))

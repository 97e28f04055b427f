"""A step where no tensor has values: nothing may be on another device, nothing may be waited for.

On CUDA the same step would mix devices, or stop until everything that was begun is done.
"""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import models
from models.layers.tokens import TokenModel
from training.distributed import Processes
from training.draws import Draws, source
from training.optimizer import Schedule
from training.recipe import Recipe
from training.recipe_file import read_recipe
from training.state import State
from training.step import Stepper

RECIPES = Path(__file__).parents[2] / "recipes"
OPTIONS = ["train.batch_size=4", "train.ema=0.9", "train.clip_norm=1.0"]
QUICK = ("cifar10 deit-elliptical", "lra_text transject")
CASES = (
    *QUICK,
    "cifar10 deit-elliptical-trades",
    "cifar10 deit-elliptical-distilled",
    "cifar10_transject",
    "enwik8 glam",
    "fashion_mnist_transject bounded",
    "lra_image nystromformer",
    "lra_listops reformer",
    "lra_retrieval transject",
    "segmentation segmenter-elliptical",
    "sentiment switch",
    "wikitext switch-elliptical",
)


def shipped(case: str) -> Recipe:
    """A recipe of the repository, and which variant of it."""
    name, *variants = case.split()
    return read_recipe(RECIPES / f"{name}.yaml", [*(f"variant={v}" for v in variants), *OPTIONS])


def batch(recipe: Recipe, config: Any) -> tuple[np.ndarray, tuple[Tensor, ...], Tensor]:
    """Four samples on the CPU, as they are read: images, or tokens with their mask."""
    task, numbers = recipe.data.task, np.arange(4)
    if hasattr(config, "img_size"):
        shape = (4, config.img_size, config.img_size)
        images = torch.zeros(4, config.in_chans, *shape[1:], dtype=torch.uint8)
        targets = torch.zeros(shape if task == "segmentation" else 4, dtype=torch.long)
        return numbers, (images,), targets
    towers = getattr(config, "towers", 1)
    tokens = torch.ones((4, towers, 32) if towers > 1 else (4, 32), dtype=torch.long)
    targets = tokens if task == "language" else torch.zeros(4, dtype=torch.long)
    return numbers, (tokens, torch.ones_like(tokens, dtype=torch.bool)), targets


def without_kernels(kind: Any) -> Any:
    """An optimizer as this device can have it: no kernel for all parameters at once."""
    return lambda *given, fused, **options: kind(*given, foreach=False, **options)


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in CASES]
)
def test_step_keeps_to_its_device_and_never_waits_for_it(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = shipped(case)
    model: Any = models.build(**recipe.model)
    for name in ("Adam", "AdamW", "SGD"):
        monkeypatch.setattr(torch.optim, name, without_kernels(getattr(torch.optim, name)))
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(TokenModel, "check", lambda *_, **__: None)  # it looks at the ids
    processes = Processes(device=torch.device("meta"))
    state = State(model.to("meta"), recipe.train, processes, "")
    stepper = Stepper(recipe, state, Schedule(train=recipe.train, steps_per_epoch=10))
    if recipe.distillation:
        stepper.teacher = torch.zeros(4, recipe.model["num_classes"])
    assert stepper(3, batch(recipe, model.config)).is_meta


def test_samples_are_in_one_group_each() -> None:
    drawn = Draws(source(0, "augment", 1), 6, slice(2, 6)).groups(3)
    assert sorted(torch.cat(drawn).tolist()) == [0, 1, 2, 3]
    numbers = Draws(source(0, "augment", 1), 6, slice(2, 6)).integers(0, 3)
    assert [own.tolist() for own in drawn] == [
        (numbers == group).nonzero()[:, 0].tolist() for group in range(3)
    ]

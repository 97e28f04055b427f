"""Do decoding and augmentation starve the model? Step rate of training over that on cached tensors.

CIFAR-10 as `recipes/cifar10.yaml size=long` trains it, with random pixels in its place, so that no
data is needed: once with the augmentation of the recipe (flips, moves) and once with that of its
full size (RandAugment, erasing, mixup, CutMix), each beside steps on a batch that is ready. Both
are called in turn, in alternating order.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

import models
from benchmarks.pairs import measure_pairs, pair_rows
from benchmarks.rows import Row
from training.loading import batches
from training.optimizer import build_optimizer
from training.order import Order
from training.processes import Processes
from training.recipe import Recipe
from training.recipe_file import read_recipe
from training.samples import StoredImages
from training.schedule import Schedule
from training.stepping import Stepper

TARGET = 1 / 0.95
"""Time of a step over the time of one on cached tensors, at most."""
_RECIPE = Path(__file__).parent.parent / "recipes" / "cifar10.yaml"
_PLAIN = ["data.flip=false", "data.shift=0"]
_STRONG = [
    "data.rand_augment=2",
    "data.erase=0.25",
    "data.mixup=0.8",
    "data.cutmix=1.0",
]
_IMAGES, _PAIRS = 12_800, 20


def run() -> Iterable[Row]:
    """Compare steps on fresh batches with steps on one that is ready, for both augmentations."""
    for name, overrides in (("flips and moves", []), ("RandAugment, erasing, mixing", _STRONG)):
        fresh = _steps(_read(*overrides), cached=False)
        cached = _steps(_read(*_PLAIN), cached=True)
        pairs = measure_pairs(cached, fresh, _PAIRS)
        case = f"CIFAR-10, DeiT of width 128 and 6 layers, batch 128, {name}"
        labels = ("cached tensors", "with data")
        yield from pair_rows("training_rate", case, labels, pairs, target=TARGET)


def _read(*overrides: str) -> Recipe:
    return read_recipe(_RECIPE, ["variant=deit", "size=small", *overrides])


def _steps(recipe: Recipe, *, cached: bool) -> Callable[[], object]:
    """A function that does the next step of a run."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (_IMAGES, 3, 32, 32), dtype=np.uint8)
    samples = StoredImages(pixels, random.integers(0, 10, _IMAGES))
    order = Order(_IMAGES, recipe.train.batch_size, seed=0)
    torch.manual_seed(0)
    model = models.build(**recipe.model)
    processes = Processes()
    schedule = Schedule(train=recipe.train, steps_per_epoch=order.steps_per_epoch)
    optimizer = build_optimizer(model, recipe.train)
    stepper = Stepper(recipe, model, optimizer, None, schedule, processes)
    part = processes.part(recipe.train.batch_size)
    steps = range(schedule.total_steps)
    fresh = batches(samples, order, steps, part=part, seed=0, workers=0, pin=False)
    ready = next(fresh)
    return lambda: stepper(0, ready if cached else next(fresh))

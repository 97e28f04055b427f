"""Do decoding and augmentation starve the model? Step rate of training over that on cached tensors.

Images in memory: CIFAR-10 as `recipes/cifar10.yaml size=small` trains it, with random pixels in its
place, so that no data is needed: once with the augmentation of the recipe (flips, moves) and once
with that of its full size (RandAugment, erasing, mixup, CutMix). Files: photos of 500 x 375 drawn
as JPEG, decoded and cropped as `recipes/imagenet.yaml size=small` has it, by one process beside the
model. Each stands beside steps on a batch that is ready. Both are called in turn, in alternating
order; files are timed over several steps at once, after the batches read ahead were thrown away.
"""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter

import models
from benchmarks.support.pairs import measure_pairs, pair_rows
from benchmarks.support.rows import Row
from data.sources import open_images
from training.distributed import Processes
from training.optimizer import Schedule
from training.order import Batch, Order, batches
from training.recipe import ImageData, Recipe
from training.recipe_file import read_recipe
from training.samples import ReadImages, Samples, StoredImages
from training.state import State
from training.step import Stepper

TARGET = 1 / 0.95
"""Time of a step over the time of one on cached tensors, at most."""
_RECIPES = Path(__file__).parent.parent / "recipes"
_PLAIN = ["data.flip=false", "data.shift=0"]
_STRONG = [
    "data.rand_augment=2",
    "data.erase=0.25",
    "data.mixup=0.8",
    "data.cutmix=1.0",
]
_IMAGES, _PAIRS = 12_800, 20
_FILES, _FILE_PAIRS, _STEPS, _AHEAD = 640, 5, 20, 2


def run() -> Iterable[Row]:
    """Compare steps on fresh batches with steps on one that is ready."""
    labels = ("cached tensors", "with data")
    for name, overrides in (("flips and moves", []), ("RandAugment, erasing, mixing", _STRONG)):
        fresh, cached = (_in_memory(*options) for options in (overrides, _PLAIN))
        pairs = measure_pairs(cached.repeat, fresh.next, _PAIRS)
        case = f"CIFAR-10, DeiT of width 128 and 6 layers, batch 128, {name}"
        yield from pair_rows(case, labels, pairs, target=TARGET)
    with tempfile.TemporaryDirectory() as folder:
        run = _from_files(Path(folder))
        pairs = measure_pairs(run.repeat_several, run.next_several, _FILE_PAIRS)
        case = (
            f"JPEG of 500 x 375 as ImageNet, DeiT of width 128 and 6 layers, {_STEPS} steps of 64"
        )
        yield from pair_rows(case, labels, pairs, target=TARGET)


class _Run:
    """The steps of a run.

    Args:
        recipe: what is trained, with which augmentation.
        samples: to learn from.
        workers: processes that prepare batches.
    """

    def __init__(self, recipe: Recipe, samples: Samples, *, workers: int) -> None:
        order = Order(len(samples), recipe.train.batch_size, seed=0)
        torch.manual_seed(0)
        model = models.build(**recipe.model)
        processes = Processes()
        schedule = Schedule(train=recipe.train, steps_per_epoch=order.steps_per_epoch)
        self._stepper = Stepper(recipe, State(model, recipe.train, processes, ""), schedule)
        part = processes.part(recipe.train.batch_size)
        steps = range(schedule.total_steps)
        self._fresh: Iterator[Batch] = batches(
            samples, order, steps, part=part, seed=0, workers=workers, pin=False
        )
        self._ready = next(self._fresh)

    def next(self) -> None:
        """A step on the next batch."""
        self._stepper(0, next(self._fresh))

    def repeat(self) -> None:
        """A step on the first batch."""
        self._stepper(0, self._ready)

    def next_several(self) -> None:
        """Steps on batches of which none is ready at the beginning."""
        for _ in range(_AHEAD):
            next(self._fresh)
        for _ in range(_STEPS):
            self.next()

    def repeat_several(self) -> None:
        """As many steps on the first batch."""
        for _ in range(_STEPS):
            self.repeat()


def _in_memory(*overrides: str) -> _Run:
    recipe = read_recipe(_RECIPES / "cifar10.yaml", ["variant=deit", "size=small", *overrides])
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (_IMAGES, 3, 32, 32), dtype=np.uint8)
    return _Run(recipe, StoredImages(pixels, random.integers(0, 10, _IMAGES)), workers=0)


def _from_files(folder: Path) -> _Run:
    random = np.random.default_rng(0)
    labels = ["one", "other"]
    for number in range(_FILES):
        path = folder / labels[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        noise = Image.fromarray(random.integers(0, 256, (375, 500, 3), dtype=np.uint8))
        noise.filter(ImageFilter.GaussianBlur(2)).save(path, quality=90)
    recipe = read_recipe(_RECIPES / "imagenet.yaml", ["variant=deit-tiny", "size=small"])
    data, images = recipe.data, open_images(str(folder), label_names=labels)
    if not isinstance(data, ImageData) or images.labels is None:
        raise TypeError("the recipe must read labeled images")
    samples = ReadImages(images, data.image, images.labels, random_crop=data.random_crop)
    return _Run(recipe, samples, workers=data.workers)

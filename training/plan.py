"""How long runs will take, told before any of them starts: a few steps of each are measured."""

import dataclasses
import heapq
import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from training import run as records
from training.distillation import ConvTeacher, soft_labels, train_teacher
from training.recipe import Recipe
from training.recipe_file import read_file, read_recipe
from training.samples import Samples, StoredImages
from training.splits import Splits, open_splits
from training.state import saved_step
from training.trainer import Trainer
from training.validation import ATTACKED, evaluate

STEPS = 3
_WARMUP, _SAMPLES, _TEACHER_IMAGES = 1, 100, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the parts of a run cost here, in seconds, and how many there are."""

    steps: int  # optimizer steps of the run
    validate_steps: int  # between two validations
    step: float
    validation: float  # one of them
    test: float
    teacher: float  # to train it and to ask it; 0 without one

    def rest(self, done: int) -> float:
        """Seconds that a run takes after so many steps; what it stops early is not counted."""
        validations = -(-self.steps // self.validate_steps) - done // self.validate_steps
        teacher = 0.0 if done else self.teacher
        return teacher + (self.steps - done) * self.step + validations * self.validation + self.test


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run of a plan; `pace` is None where it is finished."""

    folder: Path
    done: int  # steps
    pace: Pace | None
    differs: bool  # the folder holds a run of another recipe, which has to move first

    @property
    def seconds(self) -> float:
        """How long the run will take."""
        return 0.0 if self.pace is None else self.pace.rest(self.done)

    @property
    def state(self) -> str:
        """How far the run is, in words."""
        if self.differs:
            return "another recipe's"
        if self.pace is None:
            return "finished"
        return f"at step {self.done:,}" if self.done else "new"


def expand(paths: Iterable[Path], overrides: Iterable[str]) -> Iterator[Recipe]:
    """The recipes that files and overrides stand for, file by file.

    `variant=a,b` and `seed=0,1,2` name several; without a variant all of a file are meant. The
    other overrides hold for every run.

    Raises:
        ValueError: see `read_recipe`.
    """
    several: dict[str, list[str]] = {"variant": [], "seed": []}
    common = []
    for override in overrides:
        key, _, value = override.partition("=")
        if key in several:
            several[key] += [f"{key}={one}" for one in value.split(",")]
        else:
            common.append(override)
    for path in paths:
        variants = several["variant"] or [
            f"variant={name}" for name in read_file(path).get("variants", ())
        ]
        axes = (axis or [None] for axis in (variants, several["seed"]))
        for chosen in itertools.product(*axes):
            yield read_recipe(path, [*common, *filter(None, chosen)])


def plan(recipes: Iterable[Recipe], runs: Path, *, steps: int = STEPS) -> Iterator[Planned]:
    """Say of each run how far it is and how long it will take; no run is begun.

    Runs that differ in their seed alone are measured once.

    Args:
        recipes: of the runs.
        runs: the folder in which they lie, or will.
        steps: how many to measure, after one that warms up.

    Raises:
        ValueError: the data cannot be used.
    """
    opened: tuple[str, Splits] | None = None
    measured: list[tuple[Recipe, Pace]] = []
    for recipe in recipes:
        folder = runs / recipe.run_name
        differs = (folder / records.RECIPE).exists() and records.recorded_recipe(folder) != recipe
        if not differs and records.finished(folder):
            yield Planned(folder=folder, done=0, pace=None, differs=False)
            continue
        like = dataclasses.replace(recipe, seed=0)
        pace = next((found for known, found in measured if known == like), None)
        if pace is None:
            if opened is None or opened[0] != repr(recipe.data):
                opened = repr(recipe.data), open_splits(recipe, folder / records.TOKENIZER)
            pace = measure(recipe, opened[1], steps=steps)
            measured.append((like, pace))
        done = 0 if differs else saved_step(folder)
        yield Planned(folder=folder, done=done, pace=pace, differs=differs)


def ends(planned: Iterable[Planned], at_once: int) -> Iterator[tuple[Planned, float]]:
    """Each run with the seconds after which it ends, where so many train at a time.

    Each begins, in the order given, when one before it ends; that runs at a time slow each other
    down is not counted.
    """
    free = [0.0] * at_once
    for run in planned:
        end = heapq.heappop(free) + run.seconds
        heapq.heappush(free, end)
        yield run, end


def measure(recipe: Recipe, splits: Splits, *, steps: int = STEPS) -> Pace:
    """Do a few steps of a run from first weights, and a part of a validation.

    Steps that see only the beginnings of sequences are counted like the others.
    """
    whole = dataclasses.replace(recipe.train, short_steps=0, short_len=None)
    recipe = dataclasses.replace(recipe, train=whole)
    with tempfile.TemporaryDirectory() as empty:
        trainer = Trainer(recipe, Path(empty), splits=splits)
    seconds = trainer.rehearse(_WARMUP + steps)[_WARMUP:]
    every = recipe.train.validate_steps or trainer.order.steps_per_epoch
    return Pace(
        steps=trainer.schedule.total_steps,
        validate_steps=every,
        step=sum(seconds) / max(len(seconds), 1),
        validation=_evaluation(trainer, splits.valid),
        test=_evaluation(trainer, splits.test),
        teacher=_teacher(recipe, splits.train),
    )


def _evaluation(trainer: Trainer, samples: Samples) -> float:
    """Seconds of an evaluation, from a part of the samples."""

    def seconds(attack: bool) -> float:
        adversarial = trainer.recipe.adversarial if attack else None
        options = {"adversarial": adversarial, "count": _SAMPLES}
        return _timed(
            lambda: evaluate(trainer.model, samples, trainer.task, trainer.processes, **options)
        )

    total, clean = len(samples), seconds(attack=False)
    measured = min(_SAMPLES, total)
    whole = clean * total / measured
    if trainer.recipe.adversarial is not None:
        whole += (seconds(attack=True) - clean) * min(ATTACKED, total) / measured
    return whole


def _teacher(recipe: Recipe, samples: Samples) -> float:
    """Seconds of the teacher, from a part of the training split; 0 without one."""
    if recipe.distillation is None or not isinstance(samples, StoredImages):
        return 0.0
    few = StoredImages(samples.pixels[:_TEACHER_IMAGES].numpy(), samples.labels[:_TEACHER_IMAGES])
    teacher = ConvTeacher(few.pixels.shape[1], recipe.model["num_classes"])
    training = _timed(lambda: train_teacher(teacher, few, epochs=1, seed=0))
    asking = _timed(lambda: soft_labels(teacher, few.pixels))
    passes = recipe.distillation.teacher_epochs * training + asking
    return passes * len(samples.labels) / len(few.labels)


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began

"""Train many runs, several at a time on one device, such as a GPU that small models leave idle.

A process for each data set reads it and forks one for each run, so that all of them share what was
read. Runs of one data set begin in the order given.
"""

import contextlib
import fcntl
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

import torch

from core.starter import end_with_starter
from training import run as records
from training.recipe import Recipe
from training.splits import Splits, open_splits
from training.trainer import Trainer

_OF_DATA = ("vocab_size", "seq_len", "img_size", "in_chans", "towers")
"""Entries of a model that are checked against the data."""
_WAIT_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What all processes know.

    Attributes:
        runs: the folder of the runs.
        slots: a folder with a file for each run that may train at a time, which locks it.
        at_once: how many there are.
        threads: of each run.
        end: when runs are to be saved and left, by `time.monotonic`; None never.
    """

    runs: Path
    slots: Path
    at_once: int
    threads: int
    end: float | None


def train_all(
    recipes: Sequence[Recipe], runs: Path, *, at_once: int, seconds: float | None = None
) -> list[Path]:
    """Train all runs that are not finished; those that were interrupted continue.

    Each says on standard output how it ended. A run that fails ends no other.

    Args:
        recipes: of the runs.
        runs: the folder in which they lie, or will.
        at_once: how many train at a time; each has its share of the processor's cores.
        seconds: after which runs are saved and left; None lets all finish.

    Returns:
        The folders of runs that are not finished.

    Raises:
        ValueError: a folder holds a run of another recipe, or two runs have the same one.
    """
    names = [recipe.run_name for recipe in recipes]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two runs would share a folder: {', '.join(twice)}")
    left = [recipe for recipe in recipes if not _is_finished(runs / recipe.run_name, recipe)]
    groups: dict[str, list[Recipe]] = {}
    for recipe in left:
        sizes = [recipe.model.get(entry) for entry in _OF_DATA]
        groups.setdefault(repr((recipe.data, recipe.seed, recipe.labels, sizes)), []).append(recipe)
    # Forked from here they would share the threads that torch may have started in this process.
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as slots:
        shared = _Shared(
            runs=runs,
            slots=Path(slots),
            at_once=at_once,
            threads=max(1, len(os.sched_getaffinity(0)) // at_once),
            end=None if seconds is None else time.monotonic() + seconds,
        )
        with _children() as children:
            for own in groups.values():
                children.append(spawn.Process(target=_group, args=(own, shared)))
                children[-1].start()
    folders = (runs / recipe.run_name for recipe in left)
    return [folder for folder in folders if not records.finished(folder)]


def _is_finished(folder: Path, recipe: Recipe) -> bool:
    if (folder / records.RECIPE).exists() and records.recorded_recipe(folder) != recipe:
        raise ValueError(f"{folder} holds a run of another recipe: move it away")
    return records.finished(folder) is not None


@contextlib.contextmanager
def _children() -> Iterator[list[Any]]:
    """Processes that end before the `with` block does; told to, where this process is."""
    found: list[Any] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        """Let SIGTERM do what Ctrl-C does."""
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield found
        for each in found:
            each.join()
    finally:
        signal.signal(signal.SIGTERM, before)
        for each in found:
            if each.is_alive():
                each.terminate()
        for each in found:
            each.join()


def _group(recipes: Sequence[Recipe], shared: _Shared) -> None:
    """Read the data of some runs, and fork a process for each that gets a slot in time."""
    end_with_starter(signal.SIGTERM)
    torch.set_num_threads(1)  # no threads but this one, for they do not survive a fork
    first, fork = recipes[0], multiprocessing.get_context("fork")
    with contextlib.suppress(KeyboardInterrupt), _children() as children:
        try:
            splits = open_splits(first, shared.runs / first.run_name / records.TOKENIZER)
        except (ValueError, OSError) as error:
            for recipe in recipes:
                _say(recipe, f"failed: {error}")
            return
        for recipe in recipes:
            slot = _slot(shared)
            if slot is None:
                return
            with slot:  # the child holds it, too, and is the last to let it go
                children.append(fork.Process(target=_train, args=(recipe, splits, shared)))
                children[-1].start()


def _slot(shared: _Shared) -> IO[str] | None:
    """A free slot, which is held until the file is closed everywhere; None if the time is over."""
    while shared.end is None or time.monotonic() < shared.end:
        for number in range(shared.at_once):
            file = (shared.slots / str(number)).open("w")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
            else:
                return file
        time.sleep(_WAIT_S)
    return None


def _train(recipe: Recipe, splits: Splits, shared: _Shared) -> None:
    """Train one run until it is finished or the time is over."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_starter(signal.SIGTERM)
    if shared.end is not None:
        # A trainer takes the signal as a wish to stop, and saves.
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, max(1e-3, shared.end - time.monotonic()))
    torch.set_num_threads(shared.threads)
    folder, began = shared.runs / recipe.run_name, time.monotonic()
    try:
        metrics = Trainer(recipe, folder, splits=splits).run()
    except KeyboardInterrupt:
        _say(recipe, f"saved; continue with the same command, or with --resume {folder}")
    except Exception as error:  # whatever it was, the other runs do not need it
        _say(recipe, f"failed: {type(error).__name__}: {error}")
    else:
        figures = (f"test {key} {metrics[f'test_{key}']:.4g}" for key in ("accuracy", "loss"))
        _say(recipe, f"finished after {time.monotonic() - began:.0f} s, {', '.join(figures)}")


def _say(recipe: Recipe, what: str) -> None:
    sys.stdout.write(f"{recipe.run_name}: {what}\n")
    sys.stdout.flush()

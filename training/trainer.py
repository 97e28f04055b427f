"""Train one recipe: the loop over steps, validation, early stopping and the final test."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

import models
from core.files import remove_leftovers, sha256
from core.progress import Bar
from models.checkpoints import load_first_weights, load_weights, save_weights
from training import run as records
from training.distillation import teacher_logits
from training.distributed import Processes, defer_signals, interruption
from training.draws import seed_model
from training.logs import Logs
from training.optimizer import Schedule
from training.order import Batch, Order, batches
from training.recipe import ImageData, MaskData, Recipe
from training.samples import Samples, StoredImages
from training.splits import Splits, check_readable, open_splits
from training.state import State
from training.step import Stepper
from training.tasks import task_of
from training.validation import evaluate

LOG_STEPS = 20
"""Steps between two rows of `steps.csv`."""
_CONTINUE, _SAVE, _STOP = range(3)


class Trainer:
    """One training run; every draw depends on the seed and the step alone, so it can resume.

    Args:
        recipe: what to train.
        folder: the run's folder; one that holds a run is resumed.
        splits: the recipe's data, opened; None opens and checks it.
        processes: those that train together.
        progress: show progress bars.

    Raises:
        ValueError: the data cannot be used, is not what the run was started with, or its batches
            cannot be shared out.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        *,
        splits: Splits | None = None,
        processes: Processes | None = None,
        progress: bool = False,
    ) -> None:
        self.recipe, self.folder = recipe, folder
        self.processes = processes or Processes()
        self._show = progress and self.processes.is_first
        _check_shares(recipe, self.processes)
        self.task, tokenizer = task_of(recipe), folder / records.TOKENIZER
        self.splits = splits or open_splits(recipe, tokenizer, progress=self._show)
        if splits is None and not (folder / records.RECIPE).exists():
            workers = recipe.data.workers
            check_readable(self.splits, self.processes, workers=workers, progress=self._show)
        self.order = _order(recipe, self.splits.train)
        self.schedule = Schedule(train=recipe.train, steps_per_epoch=self.order.steps_per_epoch)
        self.model = _model(recipe, folder).to(self.processes.device)
        self.state = State(self.model, recipe.train, self.processes, self.splits.digest())
        self.state.resume(folder)
        self._stepper = Stepper(recipe, self.state, self.schedule)

    @property
    def finished(self) -> bool:
        """All steps done, or no better score in `patience` validations."""
        state, patience = self.state, self.recipe.train.patience
        waited = len(state.history) - state.best.get("validation", 0)
        gave_up = patience is not None and waited >= patience
        return state.step >= self.schedule.total_steps or gave_up

    def run(self) -> dict[str, Any]:
        """Train until finished, then test the best weights.

        Returns:
            The metrics, as written to the run's folder.

        Raises:
            KeyboardInterrupt: the run was asked to stop; it has been saved.
            ValueError: the loss is not a finite number.
        """
        self._begin()
        if not self.finished:
            state, writes, samples = self.state, self.processes.is_first, self.splits.train
            if self.recipe.distillation is not None and isinstance(samples, StoredImages):
                path, show = self.folder / records.TEACHER, self._show
                self._stepper.teacher = teacher_logits(
                    path, samples, self.recipe, self.processes, progress=show
                )
            logs = Logs(self.recipe, self.folder, state.step, writes=writes)
            shown = {"total": self.schedule.total_steps, "initial": state.step, "unit": "step"}
            bar = Bar(desc=self.recipe.name, disable=not self._show, **shown)
            with logs, interruption() as asked, bar:
                self._train(asked, logs, bar)
        return self._finish()

    def rehearse(self, steps: int) -> list[float]:
        """Do a few steps that are not recorded, and change the weights: seconds of each."""
        prepared, seconds = self._batches(), []
        for step in range(self.state.step, min(self.state.step + steps, self.schedule.total_steps)):
            began = time.monotonic()
            float(self._stepper(step, next(prepared)))  # waits for a GPU
            seconds.append(time.monotonic() - began)
        return seconds

    def _begin(self) -> None:
        """Write what the run depends on, before its first step and at each resumption."""
        if self.processes.is_first:
            remove_leftovers(self.folder)
            if not (self.folder / records.RECIPE).exists():
                records.start_run(self.folder, self.recipe, self.splits.tokenizer)
            inputs = {"data": self.splits.description, "data_digest": self.state.data_digest}
            if self.recipe.init and not self.state.step:
                inputs["init_digest"] = sha256(Path(self.recipe.init))
            records.record_session(self.folder, self.state.step, inputs, self.processes.size)
        self.processes.wait()

    def _train(self, asked: Callable[[], bool], logs: Logs, bar: Bar) -> None:
        state, saved = self.state, time.monotonic()
        prepared = self._batches()
        while not self.finished:
            began = time.monotonic()
            batch = next(prepared)
            waited = time.monotonic() - began
            loss = self._stepper(state.step, batch)
            state.count(loss, time.monotonic() - began, waited)
            bar.update()
            if state.step % LOG_STEPS == 0:
                self._report(logs, bar)
            due = state.step % (self.recipe.train.validate_steps or self.order.steps_per_epoch) == 0
            validated = due or state.step == self.schedule.total_steps
            if validated:
                self._validate(logs)
            late = time.monotonic() - saved >= self.recipe.train.checkpoint_seconds
            # Asked after every step: `torchrun` kills what has not ended 30 s after its signal.
            request = self.processes.max(_STOP if asked() else _SAVE if late else _CONTINUE)
            if validated or request != _CONTINUE:
                state.save(self.folder)
                saved = time.monotonic()
            if request == _STOP:
                raise KeyboardInterrupt

    def _batches(self) -> Iterator[Batch]:
        with defer_signals():
            return batches(
                self.splits.train,
                self.order,
                range(self.state.step, self.schedule.total_steps),
                part=self.processes.part(self.recipe.train.batch_size),
                seed=self.recipe.seed,
                workers=self.recipe.data.workers,
                pin=self.processes.device.type == "cuda",
            )

    def _report(self, logs: Logs, bar: Bar) -> None:
        recent = self.state.recent
        loss, samples = recent.loss(), recent.steps * self.recipe.train.batch_size
        figures = {
            "epoch": self.state.step / self.order.steps_per_epoch,
            "loss": loss,
            "lr": self.schedule.rate(self.state.step - 1),
            "samples_per_second": samples / recent.seconds,
            "waiting": recent.waited / recent.seconds,
        }
        logs.training(self.state.step, figures)
        rate = figures["samples_per_second"]
        bar.set_postfix_str(f"loss {loss:.3f}, {rate:.0f} samples/s", refresh=False)
        recent.clear()

    def _validate(self, logs: Logs) -> None:
        """Evaluate the weights, keep them if they are the best, and write a row of the history."""
        state, since, began = self.state, self.state.since, time.monotonic()
        row = {
            "epoch": state.step / self.order.steps_per_epoch,
            "step": float(state.step),
            "loss": since.loss(),
            "seconds": since.seconds,
            "waiting": since.waited / since.seconds,
        }
        with state.averaged():
            figures = self._evaluate(self.splits.valid, "valid")
            row |= _named("valid", figures)
            score = self.task.score(figures, self.recipe.train.monitor)
            is_best = score > state.best.get("score", -math.inf)
            if is_best:
                state.best = {"score": score, "validation": len(state.history) + 1}
            for name in (records.BEST, records.LAST) if is_best else (records.LAST,):
                if self.processes.is_first:
                    save_weights(self.model, self.folder / name)
        state.history.append(row)
        state.seconds += time.monotonic() - began
        since.clear()
        logs.validation(state.step, row)
        if self.processes.is_first:
            records.write_metrics(self.folder, self._metrics(), state.history)
        if self._show:
            shown = (f"{key} {value:.4g}" for key, value in row.items())
            Bar.write("  ".join(shown), file=sys.stderr)

    def _evaluate(self, samples: Samples, split: str) -> dict[str, float]:
        options = {
            "adversarial": self.recipe.adversarial,
            "progress": split if self._show else None,
        }
        return evaluate(self.model, samples, self.task, self.processes, **options)

    def _finish(self) -> dict[str, Any]:
        self.processes.wait()
        load_weights(self.model, self.folder / records.BEST)
        metrics = self._metrics() | _named("test", self._evaluate(self.splits.test, "test"))
        if self.processes.is_first:
            records.write_metrics(self.folder, metrics, self.state.history)
        return metrics

    def _metrics(self) -> dict[str, Any]:
        state, splits = self.state, self.splits
        best = state.history[int(state.best["validation"]) - 1]
        return {
            "steps": state.step,
            "epochs": round(state.step / self.order.steps_per_epoch, 3),
            "best_step": int(best["step"]),
            "seconds": round(state.seconds, 1),
            **{key: value for key, value in best.items() if key.startswith("valid")},
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "train_samples": len(splits.train),
            "valid_samples": len(splits.valid),
            "test_samples": len(splits.test),
            **self.task.floor(splits.train, splits.test),
            "data": splits.description,
            "data_digest": state.data_digest,
            "environment": records.environment(),
        }


def _model(recipe: Recipe, folder: Path) -> nn.Module:
    """The model with its first weights: drawn from the seed, or those that the recipe names.

    The file of the latter may be gone once the run has a state, which replaces them.
    """
    seed_model(recipe.seed)
    model = models.build(**recipe.model)
    if recipe.init and not (folder / records.STATE).exists():
        load_first_weights(model, Path(recipe.init))
    return model


def _named(split: str, figures: dict[str, float]) -> dict[str, float]:
    return {f"{split}_{key}": value for key, value in figures.items()}


def _order(recipe: Recipe, samples: Samples) -> Order:
    data = recipe.data
    options: dict[str, Any] = {"seed": recipe.seed}
    if isinstance(data, ImageData):
        options["repeats"] = data.repeats
    elif not isinstance(data, MaskData) and data.bucket:
        options["lengths"] = samples.lengths
    return Order(len(samples), recipe.train.batch_size, **options)


def _check_shares(recipe: Recipe, processes: Processes) -> None:
    shares, of = processes.size * recipe.train.accumulate, "processes times train.accumulate"
    if isinstance(recipe.data, ImageData) and recipe.data.mixes:
        shares, of = 2 * shares, f"{of} times 2, for images are mixed in pairs"
    if recipe.train.batch_size % shares:
        raise ValueError(
            f"train.batch_size must be a multiple of {of}, {shares}, got {recipe.train.batch_size}"
        )

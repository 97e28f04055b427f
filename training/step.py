"""One optimizer step: augment, attack, compute the loss, go along its gradient."""

import contextlib
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from training.augment import augment, augment_masks, mix
from training.draws import Draws, seed_model, source
from training.objective import Objective, attack
from training.optimizer import Schedule
from training.order import Batch
from training.recipe import ImageData, MaskData, Recipe
from training.samples import to_model
from training.state import State


class _Prepared(NamedTuple):
    """A batch on the device, or a part of it."""

    inputs: tuple[Tensor, ...]  # what the model takes
    targets: Tensor  # of the task: int64 labels (B, ...), or (B, K) shares of the classes
    teacher: Tensor | None  # (B, K) logits of a teacher, where there is one
    noise: Tensor | None  # (B, C, H, W) start of an attack, where there is one

    def part(self, own: slice) -> "_Prepared":
        """Some of the samples."""
        inputs = tuple(each[own] for each in self.inputs)
        teacher = None if self.teacher is None else self.teacher[own]
        noise = None if self.noise is None else self.noise[own]
        return _Prepared(inputs, self.targets[own], teacher, noise)


class Stepper:
    """Steps of a run; what each draws depends on the seed and the step alone.

    Args:
        recipe: what to train.
        state: model, optimizer and average that the steps change, of the processes that train.
        schedule: the learning rate of each step.

    Attributes:
        teacher: logits (N, K) for the training split; None without a teacher.
    """

    def __init__(self, recipe: Recipe, state: State, schedule: Schedule) -> None:
        self._recipe, self._state, self._schedule = recipe, state, schedule
        self._model, self._processes = state.model, state.processes
        objective, device = Objective(state.model, recipe), state.processes.device
        if state.processes.size > 1:  # they share the gradient
            gpus = [device.index] if device.type == "cuda" else None
            objective = DistributedDataParallel(objective, device_ids=gpus)
        self._objective: nn.Module = objective
        self.teacher: Tensor | None = None

    def __call__(self, step: int, batch: Batch) -> Tensor:
        """Do a step, counted from 0, on this process's share of its batch; return its mean loss."""
        self._model.train()
        # What draws inside of the model must differ among processes, and nowhere else.
        seed_model(self._recipe.seed, step, self._processes.rank, model=self._model)
        prepared = self._prepare(step, batch)
        count = self._recipe.train.accumulate
        size = len(prepared.targets) // count
        total = torch.zeros((), device=self._processes.device)
        for number in range(count):
            part = prepared.part(slice(number * size, (number + 1) * size))
            with self._unshared(number + 1 < count):
                loss = self._loss(part) / count
                loss.backward()
            total += loss.detach()
        self._update(step)
        return total

    def _prepare(self, step: int, batch: Batch) -> _Prepared:
        indices, inputs, targets = batch
        data, device = self._recipe.data, self._processes.device
        inputs, targets = to_model(inputs, device), targets.to(device, non_blocking=True)
        if isinstance(data, ImageData):
            draws = self._draws("augment", step)
            images = augment(inputs[0], data, draws)
            if data.mixes:
                strength = {"mixup": data.mixup, "cutmix": data.cutmix}
                classes = self._recipe.model["num_classes"]
                images, targets = mix(images, targets, num_classes=classes, draws=draws, **strength)
            inputs = (images,)
        elif isinstance(data, MaskData):
            images, targets = augment_masks(inputs[0], targets, data, self._draws("augment", step))
            inputs = (images,)
        elif step < self._recipe.train.short_steps:
            length = self._recipe.train.short_len
            inputs = tuple(each[..., :length] for each in inputs)
            targets = targets[..., :length] if targets.dim() > 1 else targets
        noise = None
        if self._recipe.adversarial:
            noise = self._draws("attack", step).uniform(*inputs[0].shape[1:])
        return _Prepared(inputs, targets, self._teacher_logits(step, indices), noise)

    def _draws(self, purpose: str, step: int) -> Draws:
        size = self._recipe.train.batch_size
        random = source(self._recipe.seed, purpose, step)
        return Draws(random, size, self._processes.part(size), self._processes.device)

    def _teacher_logits(self, step: int, indices: np.ndarray) -> Tensor | None:
        recipe = self._recipe.distillation
        begun = recipe is not None and step >= recipe.start * self._schedule.steps_per_epoch
        if self.teacher is None or not begun:
            return None
        return self.teacher[torch.from_numpy(indices)].to(self._processes.device)

    def _loss(self, part: _Prepared) -> Tensor:
        inputs, recipe = part.inputs, self._recipe.adversarial
        if recipe is None or part.noise is None:
            return self._objective(inputs, part.targets, part.teacher)
        found = attack(self._model, inputs[0], part.targets, recipe, part.noise)
        natural = inputs[0] if recipe.method == "trades" else None
        return self._objective((found,), part.targets, part.teacher, natural)

    def _unshared(self, wanted: bool) -> contextlib.AbstractContextManager[None]:
        """Keep the gradient of this process to itself until the last part of the batch."""
        if wanted and isinstance(self._objective, DistributedDataParallel):
            return self._objective.no_sync()
        return contextlib.nullcontext()

    def _update(self, step: int) -> None:
        if self._recipe.train.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._recipe.train.clip_norm)
        optimizer, average = self._state.optimizer, self._state.average
        for group in optimizer.param_groups:
            group["lr"] = self._schedule.rate(step) * group.get("factor", 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if average is not None:
            average.update(self._model, step)

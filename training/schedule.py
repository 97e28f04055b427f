"""The learning rate of each step: warm-up, decay, cool-down, restarts."""

import math
from dataclasses import dataclass

from training.recipe import TrainRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The learning rate as a function of the step.

    Attributes:
        train: peak, form and lengths.
        steps_per_epoch: what an epoch of the recipe is in steps.
    """

    train: TrainRecipe
    steps_per_epoch: int

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        if self.train.steps is not None:
            return self.train.steps
        return (self.train.epochs or 0) * self.steps_per_epoch

    @property
    def warmup_steps(self) -> float:
        """Steps of the warm-up."""
        if self.train.warmup_steps is not None:
            return self.train.warmup_steps
        return self.train.warmup_epochs * self.steps_per_epoch

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0.

        Linear warm-up, then half a cosine or a line to `min_lr`, once more after each restart.
        """
        train = self.train
        bounds = [0, *(restart * self.steps_per_epoch for restart in train.restarts)]
        cycle = sum(step >= bound for bound in bounds) - 1
        cooldown = train.cooldown_epochs * self.steps_per_epoch
        end = (*bounds[1:], self.total_steps - cooldown)[cycle]
        start, peak = bounds[cycle], train.lr * train.restart_decay**cycle
        if cycle == 0:
            if step < self.warmup_steps:
                # Counted from 1: the first step of a warm-up from 0 would else be lost.
                risen = (step + 1) / (self.warmup_steps + 1)
                return train.warmup_lr + (peak - train.warmup_lr) * risen
            start = self.warmup_steps
        if train.schedule == "constant":
            return peak
        done = min((step - start) / max(end - start, 1), 1.0)
        left = 0.5 * (1 + math.cos(math.pi * done)) if train.schedule == "cosine" else 1 - done
        return train.min_lr + (peak - train.min_lr) * left

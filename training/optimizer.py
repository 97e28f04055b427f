"""The optimizer of a recipe, the average of the weights, and the learning rate of each step."""

import fnmatch
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.recipe import TrainRecipe


def build_optimizer(model: nn.Module, train: TrainRecipe) -> torch.optim.Optimizer:
    """Adam, AdamW or SGD; only matrices decay, not biases, scales, nor tables of one row or column.

    Each group of parameters holds the `factor` of its learning rate.

    Raises:
        ValueError: a pattern of `lr_factors` fits the name of no parameter.
    """
    named = dict(model.named_parameters())
    for pattern in train.lr_factors:
        if not fnmatch.filter(named, pattern):
            raise ValueError(f"train.lr_factors must name parameters of the model, got {pattern!r}")
    found: dict[tuple[bool, float], list[nn.Parameter]] = {(True, 1.0): [], (False, 1.0): []}
    for name, parameter in named.items():
        rows = parameter.shape[0] if parameter.ndim else 1
        is_matrix = rows > 1 and parameter.numel() > rows
        fitting = (f for pattern, f in train.lr_factors.items() if fnmatch.fnmatch(name, pattern))
        found.setdefault((is_matrix, next(fitting, 1.0)), []).append(parameter)
    groups = [
        {"params": own, "weight_decay": train.weight_decay if is_matrix else 0.0, "factor": factor}
        for (is_matrix, factor), own in found.items()
    ]
    if train.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=train.lr, momentum=train.momentum, fused=True)
    kind = torch.optim.AdamW if train.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=train.lr, betas=train.betas, eps=train.adam_eps, fused=True)


class Average:
    """An exponential moving average of the weights and of the buffers that are saved.

    The decay grows from 0.1 to its value, as (1 + t) / (10 + t): the random first weights would
    else stay in the average of a short run.

    Args:
        model: whose weights are followed.
        decay: share of the old average that stays at each step.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self.state = {key: value.clone() for key, value in model.state_dict().items()}

    def update(self, model: nn.Module, step: int) -> None:
        """Follow the weights after a step, counted from 0."""
        decay = min(self._decay, (1 + step) / (10 + step))
        for key, value in model.state_dict().items():
            if value.is_floating_point():
                self.state[key].lerp_(value, 1 - decay)
            else:
                self.state[key].copy_(value)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Give the model the average inside a `with` block, and its own weights back after it."""
        own = {key: value.clone() for key, value in model.state_dict().items()}
        model.load_state_dict(self.state)
        try:
            yield
        finally:
            model.load_state_dict(own)

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state` held."""
        for key, value in state.items():
            self.state[key].copy_(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The learning rate as a function of the step."""

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

        Linear warm-up, then half a cosine, a line or a power of it to `min_lr`, once more after
        each restart.
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
        if train.schedule == "polynomial":
            left **= train.power
        return train.min_lr + (peak - train.min_lr) * left

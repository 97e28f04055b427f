"""The optimizer of a recipe, and the average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from training.recipe import TrainRecipe


def build_optimizer(model: nn.Module, train: TrainRecipe) -> torch.optim.Optimizer:
    """Adam or AdamW; only matrices decay, not biases, scales, nor tables of one row or column."""
    matrices, others = [], []
    for parameter in model.parameters():
        rows = parameter.shape[0] if parameter.ndim else 1
        is_matrix = rows > 1 and parameter.numel() > rows
        (matrices if is_matrix else others).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": train.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
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
        """Go on from what `state` held."""
        for key, value in state.items():
            self.state[key].copy_(value)

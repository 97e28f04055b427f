"""The tasks of training: what each minimizes, measures, and keeps weights by.

A recipe has its task from its data: `data.task` names it.
"""

from abc import ABC, abstractmethod
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from training.recipe import Recipe
from training.samples import Samples


class Task(ABC):
    """What a kind of model learns."""

    @classmethod
    @abstractmethod
    def of(cls, recipe: Recipe) -> Self:
        """The task with what its loss and its figures depend on, taken from a recipe."""

    @property
    @abstractmethod
    def zeros(self) -> Tensor:
        """The `sums` of no samples."""

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss that training minimizes.

        Args:
            logits: what the model answers, float32.
            targets: of `Samples.targets`, or what augmentation made of them.
        """

    @abstractmethod
    def sums(self, logits: Tensor, targets: Tensor) -> Tensor:
        """What evaluation adds up over batches and processes: float64 on the CPU."""

    @abstractmethod
    def figures(self, sums: Tensor) -> dict[str, float]:
        """The figures of a split: `loss`, `accuracy` and others, of its `sums`."""

    def score(self, figures: dict[str, float], monitor: str) -> float:
        """By which the best weights are kept, larger is better.

        Args:
            figures: of the validation; the accuracy under attack comes before the clean one.
            monitor: `accuracy` or `loss`, see `TrainRecipe`.
        """
        if monitor == "loss":
            return -figures["loss"]
        return figures.get("attacked_accuracy", figures["accuracy"])

    @abstractmethod
    def floor(self, train: Samples, test: Samples) -> dict[str, float]:
        """What an answer that ignores its input reaches on the test split, by name."""


class Classification(Task):
    """One of K classes for each sample: logits (B, K), targets (B,) int64 or shares (B, K).

    Args:
        num_classes: K.
        label_smoothing: share of a target that the loss spreads over all classes.
    """

    def __init__(self, num_classes: int, label_smoothing: float = 0.0) -> None:
        self._num_classes, self._label_smoothing = num_classes, label_smoothing

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """See `Task.of`."""
        return cls(len(recipe.labels), recipe.train.label_smoothing)

    @property
    def zeros(self) -> Tensor:
        """Zeros (4,)."""
        return torch.zeros(4, dtype=torch.float64)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy, with label smoothing."""
        return F.cross_entropy(logits, targets, label_smoothing=self._label_smoothing)

    def sums(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Number right, sum of the losses, number among the first five, number: (4,)."""
        best = logits.topk(min(5, logits.shape[1])).indices == targets[:, None]
        loss = F.cross_entropy(logits.float(), targets, reduction="sum")
        count = loss.new_tensor(len(targets))
        return torch.stack((best[:, 0].sum(), loss, best.sum(), count)).double().cpu()

    def figures(self, sums: Tensor) -> dict[str, float]:
        """`accuracy` and `loss`, and `top5_accuracy` where there are more than five classes."""
        correct, loss, top5 = (sums[:3] / sums[3]).tolist()
        figures = {"accuracy": correct, "loss": loss}
        return figures | ({"top5_accuracy": top5} if self._num_classes > 5 else {})

    def floor(self, train: Samples, test: Samples) -> dict[str, float]:
        """`majority_accuracy`: of always answering the commonest class of the training split."""
        commonest = np.bincount(train.labels).argmax()
        return {"majority_accuracy": float((test.labels == commonest).mean())}


TASKS: dict[str, type[Task]] = {"classification": Classification}
"""By the name that a recipe's data gives."""


def task_of(recipe: Recipe) -> Task:
    """The task of a recipe."""
    return TASKS[recipe.data.task].of(recipe)

"""The tasks of training: what each minimizes, measures, and keeps weights by.

A recipe has its task from its data: `data.task` names it.
"""

import math
from abc import ABC, abstractmethod
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from data.sets import IGNORED
from training.recipe import LanguageData, MaskData, Recipe
from training.samples import UNSCORED, Samples, Segments, StoredMasks

_LARGEST = 700.0
"""A loss whose exponential is still a number."""


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


class Segmentation(Task):
    """One of K classes for each pixel: logits (B, K, H, W), targets (B, H, W) int64.

    Pixels whose target is `IGNORED` count nowhere. The figures of a split come from one table of
    true and predicted classes over all its pixels.

    Args:
        num_classes: K.
        background: class that `item_mean_iou` leaves out; None where all are alike.
        label_smoothing: share of a target that the loss spreads over all classes.
    """

    def __init__(
        self, num_classes: int, background: int | None = None, label_smoothing: float = 0.0
    ) -> None:
        self._num_classes, self._background = num_classes, background
        self._label_smoothing = label_smoothing

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """See `Task.of`."""
        background = recipe.data.background if isinstance(recipe.data, MaskData) else None
        return cls(len(recipe.labels), background, recipe.train.label_smoothing)

    @property
    def zeros(self) -> Tensor:
        """Zeros (K * K + 1,)."""
        return torch.zeros(self._num_classes**2 + 1, dtype=torch.float64)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy over all pixels of the batch, with label smoothing."""
        return self._summed(logits, targets) / (targets != IGNORED).sum().clamp_min(1)

    def sums(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Pixels by true and predicted class, row by row, and the sum of the losses: (K * K + 1,).

        The loss is that without label smoothing.
        """
        loss = F.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")
        counts = confusion(logits.argmax(1), targets, self._num_classes)
        return torch.cat((counts.flatten().double().cpu(), loss.double().cpu()[None]))

    def figures(self, sums: Tensor) -> dict[str, float]:
        """`accuracy` of pixels, `mean_class_accuracy`, `mean_iou` and `loss`.

        With a background, `item_mean_iou` over all other classes, too. Classes that neither occur
        nor are predicted have no part in the means, classes that do not occur none in the second.

        Source: Long et al., "Fully convolutional networks for semantic segmentation", 2015,
            section 5.
        """
        counts, loss = sums[:-1].view(self._num_classes, -1), sums[-1]
        right, true, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
        iou, items = right / (true + predicted - right), torch.ones_like(right, dtype=torch.bool)
        figures = {
            "accuracy": right.sum() / true.sum(),
            "loss": loss / true.sum(),
            "mean_class_accuracy": (right / true).nanmean(),
            "mean_iou": iou.nanmean(),
        }
        if self._background is not None:
            items[self._background] = False
            figures["item_mean_iou"] = iou[items].nanmean()
        return {name: float(figure) for name, figure in figures.items()}

    def score(self, figures: dict[str, float], monitor: str) -> float:
        """See `Task.score`; in the place of the accuracy the mean IoU."""
        return -figures["loss"] if monitor == "loss" else figures["mean_iou"]

    def floor(self, train: Samples, test: Samples) -> dict[str, float]:
        """`majority_accuracy`: of always answering the commonest class of the training pixels.

        Nothing where masks are not in memory: all would be read for it.
        """
        if not isinstance(train, StoredMasks) or not isinstance(test, StoredMasks):
            return {}
        commonest = train.counts.argmax()
        return {"majority_accuracy": float(test.counts[commonest] / test.counts.sum())}

    def _summed(self, logits: Tensor, targets: Tensor) -> Tensor:
        smoothing = self._label_smoothing
        return F.cross_entropy(
            logits, targets, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum"
        )


def confusion(predicted: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """How many pixels of each true class (rows) got each class: (K, K) int64.

    Args:
        predicted: classes, of any shape.
        targets: true classes, of the same shape; those that are `IGNORED` are not counted.
        num_classes: K.
    """
    counted = targets != IGNORED
    pairs = targets[counted] * num_classes + predicted[counted]
    return torch.bincount(pairs, minlength=num_classes**2).view(num_classes, -1)


class Language(Task):
    """The next token of each: logits (B, N, V), targets (B, N) int64, of which some are ignored.

    Args:
        characters: whether tokens are characters.
        label_smoothing: share of a target that the loss spreads over all tokens.
    """

    def __init__(self, *, characters: bool, label_smoothing: float = 0.0) -> None:
        self._characters, self._label_smoothing = characters, label_smoothing

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """See `Task.of`."""
        characters = isinstance(recipe.data, LanguageData) and recipe.data.is_bytes
        return cls(characters=characters, label_smoothing=recipe.train.label_smoothing)

    @property
    def zeros(self) -> Tensor:
        """Zeros (3,)."""
        return torch.zeros(3, dtype=torch.float64)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of the tokens, in nats, with label smoothing."""
        options = {"label_smoothing": self._label_smoothing, "ignore_index": UNSCORED}
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), **options)

    def sums(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Number right, sum of the negative log-likelihoods, number: (3,)."""
        counted = targets != UNSCORED
        logits, targets = logits[counted].float(), targets[counted]
        loss = F.cross_entropy(logits, targets, reduction="none").double().sum()
        right = (logits.argmax(-1) == targets).sum()
        return torch.stack((right, loss, loss.new_tensor(len(targets)))).double().cpu()

    def figures(self, sums: Tensor) -> dict[str, float]:
        """`accuracy`, `loss` in nats, `perplexity` and `tokens`; `bits_per_character` of bytes."""
        right, loss = (sums[:2] / sums[2]).tolist()
        figures = {"accuracy": right, "loss": loss, "perplexity": _exp(loss)}
        bits = {"bits_per_character": loss / math.log(2)} if self._characters else {}
        return figures | bits | {"tokens": float(sums[2])}

    def floor(self, train: Samples, test: Samples) -> dict[str, float]:
        """`unigram_perplexity`: of how often each token is in the training split, plus one."""
        if not isinstance(train, Segments) or not isinstance(test, Segments):
            return {}
        counts = np.bincount(train.stream, minlength=train.vocab_size) + 1.0
        losses = np.log(counts.sum()) - np.log(counts)
        return {"unigram_perplexity": _exp(float(losses[test.stream[1:]].mean()))}


def _exp(loss: float) -> float:
    """The exponential of a loss; of one that has run away, infinity."""
    return math.exp(loss) if loss < _LARGEST else math.inf


TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "segmentation": Segmentation,
    "language": Language,
}
"""By the name that a recipe's data gives."""


def task_of(recipe: Recipe) -> Task:
    """The task of a recipe."""
    return TASKS[recipe.data.task].of(recipe)

"""What a model answers, and how right it is: one class for an input, or one for every pixel.

Scoring rests on ranks, integers of which 0 is right and a larger one is worse: of a class the
number of classes before it, of an image's pixels the number of wrong ones. So the worst of several
attacks is the largest rank of either.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import numpy as np

from data.sets import IGNORED
from robustness.kinds import Answer
from robustness.logits import all_finite, label_rank, margin, top_probability


class Task(ABC):
    """What an input's answer is measured by."""

    answer: ClassVar[Answer]
    metric: ClassVar[Literal["accuracy", "pixel accuracy"]]
    gates: ClassVar[tuple[str, ...]]

    @abstractmethod
    def rank(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """How wrong each input is, (N,) int64; one with a logit that is not finite, entirely."""

    @abstractmethod
    def share(self, rank: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """How right each input is, (N,) float64 in [0, 1], from its rank."""

    @abstractmethod
    def index(self, logits: np.ndarray) -> np.ndarray:
        """The class that is shown of each input, (N,) int64."""

    @abstractmethod
    def probability(self, logits: np.ndarray) -> np.ndarray:
        """How sure the answer is, (N,) float64; NaN if a logit is not finite."""

    @abstractmethod
    def margin(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """By how much each input is right, (N,) float64; minus infinity if not finite."""

    def tables(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray | None:
        """What a figure over all inputs together adds up; None where there is none."""
        return None


class Classification(Task):
    """One of K classes for each input: logits (N, K), labels (N,)."""

    answer = "class"
    metric = "accuracy"
    gates = ("robust_accuracy", "clean_accuracy", "proved_accuracy")

    def rank(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """See `label_rank`."""
        return label_rank(logits, labels)

    def share(self, rank: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """1 where the label comes first, else 0."""
        return (rank == 0).astype(np.float64)

    def index(self, logits: np.ndarray) -> np.ndarray:
        """The class with the largest logit."""
        return logits.argmax(axis=1)

    def probability(self, logits: np.ndarray) -> np.ndarray:
        """See `top_probability`."""
        return top_probability(logits)

    def margin(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """See `margin`."""
        return margin(logits, labels)


class Segmentation(Task):
    """One of K classes for each pixel: logits (N, K, H, W), labels (N, H, W).

    Pixels whose label is `IGNORED` count nowhere.
    """

    answer = "pixels"
    metric = "pixel accuracy"
    gates = ("robust_pixel_accuracy", "clean_pixel_accuracy")

    def rank(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The number of pixels that get another class."""
        counted = labels != IGNORED
        wrong = ((logits.argmax(axis=1) != labels) & counted).sum(axis=(1, 2))
        return np.where(all_finite(logits), wrong, counted.sum(axis=(1, 2))).astype(np.int64)

    def share(self, rank: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The pixel accuracy of each image; 1 where no pixel counts."""
        counted = (labels != IGNORED).sum(axis=(1, 2))
        return 1 - rank / np.maximum(counted, 1)

    def index(self, logits: np.ndarray) -> np.ndarray:
        """The class of most pixels."""
        K = logits.shape[1]
        maps = logits.argmax(axis=1).reshape(len(logits), logits.shape[2] * logits.shape[3])
        counts = [np.bincount(row, minlength=K).argmax() for row in maps]
        return np.array(counts, np.int64)

    def probability(self, logits: np.ndarray) -> np.ndarray:
        """The mean over pixels of the probability of their class."""
        N, K, H, W = logits.shape
        pixels = np.moveaxis(logits, 1, 3).reshape(N * H * W, K)
        return top_probability(pixels).reshape(N, H * W).mean(axis=1)

    def margin(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The share of wrong pixels, with a minus."""
        share = self.share(self.rank(logits, labels), labels)
        return np.where(all_finite(logits), share - 1, -np.inf)

    def tables(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Pixels of each class that are right, that have it, and that get it: (3, K, N) int64."""
        K, found = logits.shape[1], []
        for predicted, truth in zip(logits.argmax(axis=1), labels, strict=True):
            counted = truth != IGNORED
            predicted, truth = predicted[counted], truth[counted]
            each = (truth[predicted == truth], truth, predicted)
            found.append(np.stack([np.bincount(one, minlength=K) for one in each]))
        return np.stack(found, axis=-1) if found else np.zeros((3, K, 0), np.int64)


def mean_iou(sums: np.ndarray) -> np.ndarray:
    """Mean intersection over union, (...), of sums of `Segmentation.tables`, (..., 3, K).

    Classes that neither occur nor are predicted have no part in it; NaN where none does.
    """
    right, true, predicted = (sums[..., i, :].astype(np.float64) for i in range(3))
    union = true + predicted - right
    known = union > 0
    iou = np.where(known, right / np.where(known, union, 1), 0)
    with np.errstate(invalid="ignore"):
        return iou.sum(axis=-1) / known.sum(axis=-1)

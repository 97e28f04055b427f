"""Attacks that ask the served model: it answers with logits and shows nothing else of itself."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from robustness.attacks.base import BallAttack, Batch, Budget, Search, check_images

if TYPE_CHECKING:
    from robustness.target import Target

Predict = Callable[[np.ndarray], np.ndarray]
"""Logits (B, K) for images (B, C, H, W) float32 in [0, 1]."""

_LOST_TIE = -np.finfo(np.float32).tiny


class Oracle:
    """A model's `predict`, of which an attack only sees by how much the label leads."""

    def __init__(self, predict: Predict) -> None:
        self._predict = predict

    def margins(self, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Logit of the label minus the largest other one, (B,) float32; one evaluation an image.

        Negative exactly where an image is misclassified: a tie that goes to the class of the lower
        index is a tiny negative number, and a logit that is not finite counts as minus infinity.
        """
        logits = np.array(self._predict(images), dtype=np.float32)
        rows, winners = np.arange(len(labels)), logits.argmax(1)
        finite = np.isfinite(logits).all(1)
        own = logits[rows, labels]
        logits[rows, labels] = -np.inf
        margins = np.subtract(own, logits.max(1), out=np.full_like(own, -np.inf), where=finite)
        return np.where((margins == 0) & (winners != labels), _LOST_TIE, margins)

    def fooled(self, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Which images get another class than their label, (B,) bool; one evaluation an image.

        A logit that is not finite is another class.
        """
        logits = self._predict(images)
        return (logits.argmax(1) != labels) | ~np.isfinite(logits).all(1)

    def misclassifies(self, image: np.ndarray, label: int) -> bool:
        """Whether one image (C, H, W) gets another class than its label."""
        return bool(self.margins(image[None], np.array([label]))[0] < 0)

    def right(self, images: np.ndarray, labels: np.ndarray, batch: int) -> np.ndarray:
        """Indices of the images that the model classifies as labelled, in order."""
        margins = [
            self.margins(images[start : start + batch], labels[start : start + batch])
            for start in range(0, len(images), batch)
        ]
        return np.flatnonzero(np.concatenate(margins) >= 0) if margins else np.arange(0)


class QueryAttack(BallAttack, frozen=True):
    """An attack that only asks for answers."""

    def run(self, target: "Target", batch: Batch, budget: Budget, search: Search) -> Batch:
        """See `Attack.run`."""
        check_images(batch, search.seeds, search.space)
        oracle = Oracle(partial(target.predict, meter=search.meter))
        made = self.perturb(oracle, batch.images, batch.labels, budget.value, search)
        return Batch(inputs=made, labels=batch.labels)

    def perturb(
        self, oracle: Oracle, images: np.ndarray, labels: np.ndarray, eps: float, search: Search
    ) -> np.ndarray:
        """Look for misclassified images within a ball; the best ones met, (N, C, H, W) float32.

        Args:
            oracle: the model.
            images: (N, C, H, W) float32 in [0, 1].
            labels: (N,) int64.
            eps: radius.
            search: how to go about it.
        """
        raise NotImplementedError

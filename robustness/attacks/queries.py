"""Asking a model that answers with logits and shows nothing else of itself."""

from collections.abc import Callable, Sequence

import numpy as np

from robustness.progress import Meter

Predict = Callable[[np.ndarray], np.ndarray]
"""Logits (B, K) for images (B, C, H, W) float32 in [0, 1]."""

_LOST_TIE = -np.finfo(np.float32).tiny


class Oracle:
    """A model's `predict`, of which an attack only sees by how much the label leads.

    Args:
        predict: the model.
        meter: told of every model evaluation; its `Cancelled` ends an attack within one step.
    """

    def __init__(self, predict: Predict, meter: Meter | None) -> None:
        self._predict = predict
        self._meter = meter

    def margins(self, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Logit of the label minus the largest other one, (B,) float32; one evaluation an image.

        Negative exactly where an image is misclassified: a tie that goes to the class of the lower
        index is a tiny negative number, and a logit that is not finite counts as minus infinity.

        Args:
            images: (B, C, H, W).
            labels: (B,) int64.

        Raises:
            ValueError: the answer is no (B, K) array with K >= 2, or a label is no class of it.
        """
        if self._meter is not None:
            self._meter.before()
        logits = np.array(self._predict(images), dtype=np.float32)
        if self._meter is not None:
            self._meter.after(len(images))
        if logits.ndim != 2 or len(logits) != len(images) or logits.shape[1] < 2:
            raise ValueError(f"logits must be ({len(images)}, K >= 2), got {logits.shape}")
        if labels.size and not (0 <= labels.min() and labels.max() < logits.shape[1]):
            raise ValueError(
                f"labels must lie in [0, {logits.shape[1]}), got {labels.min()} to {labels.max()}"
            )
        return _margins(logits, labels)

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


def _margins(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    rows = np.arange(len(labels))
    winners = logits.argmax(1)
    finite = np.isfinite(logits).all(1)
    own = logits[rows, labels]
    logits[rows, labels] = -np.inf
    margins = np.subtract(own, logits.max(1), out=np.full_like(own, -np.inf), where=finite)
    return np.where((margins == 0) & (winners != labels), _LOST_TIE, margins)


def check_request(
    images: np.ndarray, labels: np.ndarray, *, seeds: Sequence[int], eps: float, batch: int
) -> None:
    """Check what every attack by queries is given.

    Args:
        images: must be (N, C, H, W) float32 in [0, 1].
        labels: must be (N,) int64.
        seeds: must be N, each at least 0.
        eps: must be positive.
        batch: must be positive.

    Raises:
        ValueError: one of them is not so.
    """
    if images.dtype != np.float32 or images.ndim != 4:
        raise ValueError(f"images must be (N, C, H, W) float32, got {images.shape} {images.dtype}")
    if not ((images >= 0) & (images <= 1)).all():
        raise ValueError("images must lie in [0, 1]")
    if labels.dtype != np.int64 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels must be ({len(images)},) int64, got {labels.shape} {labels.dtype}"
        )
    if len(seeds) != len(images) or min(seeds, default=0) < 0:
        raise ValueError(f"seeds must be {len(images)} integers >= 0, got {str(seeds)[:80]}")
    if not eps > 0:
        raise ValueError(f"eps must be positive, got {eps}")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")

"""What logits say of a label."""

import numpy as np


def label_rank(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Number of classes that come before the label.

    Equal logits are ordered by index, as argmax does. A row with a value that is not finite gets
    rank K.

    Args:
        logits: (N, K).
        labels: (N,) in [0, K).

    Returns:
        (N,) int64; 0 means top-1.
    """
    own = np.take_along_axis(logits, labels[:, None], axis=1)  # (N, 1)
    earlier = np.arange(logits.shape[1])[None, :] < labels[:, None]
    rank = ((logits > own) | ((logits == own) & earlier)).sum(axis=1)
    return np.where(np.isfinite(logits).all(axis=1), rank, logits.shape[1]).astype(np.int64)


def all_finite(logits: np.ndarray) -> np.ndarray:
    """Which rows hold nothing but numbers, (N,) bool, of logits (N, K, ...)."""
    return np.asarray(np.isfinite(logits).all(axis=tuple(range(1, logits.ndim))))


def margin(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Logit of the label minus the largest other one, (N,); minus infinity if not finite."""
    others = logits.astype(np.float64)
    own = np.take_along_axis(others, labels[:, None], axis=1)[:, 0]
    np.put_along_axis(others, labels[:, None], -np.inf, axis=1)
    with np.errstate(invalid="ignore"):
        difference = own - others.max(axis=1)
    return np.where(np.isfinite(logits).all(axis=1), difference, -np.inf)


def top_probability(logits: np.ndarray) -> np.ndarray:
    """Softmax probability of the largest logit, (N,) float64; NaN if a logit is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        return 1 / np.exp(shifted).sum(axis=1)

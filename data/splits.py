"""Validation samples held out of the training set."""

import numpy as np


def split_indices(num_samples: int, valid: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a validation split, the same for the same arguments.

    Args:
        num_samples: size of the training set.
        valid: how many samples to hold out, at least 1 and fewer than num_samples.
        seed: seed of the draw.

    Returns:
        Indices to train on and indices held out, each in ascending order.

    Raises:
        ValueError: `valid` is out of range.
    """
    if not 1 <= valid < num_samples:
        raise ValueError(f"valid must be from 1 to {num_samples - 1}, got {valid}")
    order = np.random.default_rng(seed).permutation(num_samples)
    return np.sort(order[valid:]), np.sort(order[:valid])

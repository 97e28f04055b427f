"""Noise of sensors. Images are (H, W, C) in [0, 1]; results may leave [0, 1]."""

import numpy as np


def gaussian_noise(image: np.ndarray, rng: np.random.Generator, scale: float) -> np.ndarray:
    """Add independent normal noise of standard deviation `scale`."""
    return image + rng.normal(0, scale, image.shape)


def shot_noise(image: np.ndarray, rng: np.random.Generator, photons: float) -> np.ndarray:
    """Count particles of light; a white pixel receives `photons` on average."""
    return rng.poisson(image * photons) / photons


def impulse_noise(image: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Set a share of all values to 0 or 1, either with probability 1/2, channel by channel."""
    hit = rng.random(image.shape) <= share
    salt = rng.random(image.shape) <= 0.5
    return np.where(hit, salt, image)


def speckle_noise(image: np.ndarray, rng: np.random.Generator, scale: float) -> np.ndarray:
    """Add normal noise that grows in proportion to brightness."""
    return image * (1 + rng.normal(0, scale, image.shape))

"""Randomised smoothing: radii within which a majority vote under noise provably stays the same.

What is certified is not the model itself but the classifier that answers with the class that the
model gives most often to an image under normal noise. Whatever moves an image by less than the
radius, in l2 and in units of pixels in [0, 1], leaves that answer as it is; of images with such a
radius a share of `alpha` may be wrong, because the vote was sampled. Noisy inputs leave [0, 1], as
the proof demands.

Source: Cohen, Rosenfeld & Kolter 2019, algorithm CERTIFY.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from core.stats import lower_bound
from robustness.progress import Meter

SELECTION = 100
"""Noisy copies that choose the class, beside those that count its votes."""

Predict = Callable[[np.ndarray], np.ndarray]
"""Inputs (B, C, H, W) float32 -> logits (B, K)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """What is proved of each image; arrays have one entry per image.

    Attributes:
        index: (N,) int64 class that the vote gives; -1 where it abstains.
        radius: (N,) float64 l2 radius in pixels in [0, 1]; 0 where the vote abstains.
        abstained: (N,) bool, no class has provably more than half of the votes.
    """

    index: np.ndarray
    radius: np.ndarray
    abstained: np.ndarray


def certify(
    predict: Predict,
    images: np.ndarray,
    *,
    sigma: float,
    samples: int,
    alpha: float,
    seeds: Sequence[int],
    batch: int = 256,
    meter: Meter | None = None,
) -> Certificates:
    """Certify the majority vote under noise for each image.

    An image's noise comes from its own seed alone, so neither batch nor order changes it. An
    answer that is not finite is a vote for no class.

    Args:
        predict: the model.
        images: (N, C, H, W) float32 in [0, 1].
        sigma: standard deviation of the noise in each pixel, > 0.
        samples: votes that the certificate rests on, beside the 100 that choose the class.
        alpha: probability that a certificate is wrong, in (0, 1).
        seeds: one per image, each at least 0.
        batch: noisy copies that are evaluated at once.
        meter: told of each model evaluation.

    Raises:
        ValueError: an argument is out of range, or there is not one seed per image.
        Cancelled: the caller wants to stop.

    Source: Cohen et al. 2019, theorem 1 and CERTIFY.
    """
    _check(images, sigma=sigma, samples=samples, alpha=alpha, seeds=seeds, batch=batch)
    index = np.full(len(images), -1, np.int64)
    radius = np.zeros(len(images))
    for i, (image, seed) in enumerate(zip(images, seeds, strict=True)):
        noisy = _noisy_batches(image, sigma, seed, SELECTION + samples, batch)
        votes = np.concatenate([_votes(predict, inputs, meter) for inputs in noisy])
        first = votes[:SELECTION]
        if not (first >= 0).any():
            continue
        chosen = int(np.bincount(first[first >= 0]).argmax())
        share = lower_bound(int((votes[SELECTION:] == chosen).sum()), samples, alpha=alpha)
        if share > 0.5:
            index[i], radius[i] = chosen, sigma * special.ndtri(share)
    return Certificates(index=index, radius=radius, abstained=index < 0)


def _noisy_batches(
    image: np.ndarray, sigma: float, seed: int, count: int, batch: int
) -> Iterator[np.ndarray]:
    draw = np.random.default_rng(seed)
    for start in range(0, count, batch):
        size = (min(batch, count - start), *image.shape)
        yield image + np.float32(sigma) * draw.standard_normal(size, dtype=np.float32)


def _votes(predict: Predict, inputs: np.ndarray, meter: Meter | None) -> np.ndarray:
    """The class of each input, -1 where a logit is not finite."""
    if meter is not None:
        meter.before()
    logits = predict(inputs)
    if meter is not None:
        meter.after(len(inputs))
    return np.where(np.isfinite(logits).all(axis=1), logits.argmax(axis=1), -1)


def _check(
    images: np.ndarray,
    *,
    sigma: float,
    samples: int,
    alpha: float,
    seeds: Sequence[int],
    batch: int,
) -> None:
    if images.ndim != 4 or images.dtype != np.float32:
        raise ValueError(f"images must be (N, C, H, W) float32, got {images.shape} {images.dtype}")
    if not (math.isfinite(sigma) and sigma > 0):
        raise ValueError(f"sigma must be a positive number, got {sigma}")
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie in (0, 1), got {alpha}")
    if len(seeds) != len(images):
        raise ValueError(f"seeds must be one per image, {len(images)}, got {len(seeds)}")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")

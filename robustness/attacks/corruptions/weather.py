"""Snow, frost, fog and sunlight. Images are (H, W, C) in [0, 1]; results may leave [0, 1]."""

import numpy as np

from robustness.attacks.corruptions.blur import magnify, smear
from robustness.attacks.corruptions.color import luma
from robustness.attacks.corruptions.texture import clouds, ice


def snow(
    image: np.ndarray,
    rng: np.random.Generator,
    mean: float,
    deviation: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    keep: float,
) -> np.ndarray:
    """Lay falling flakes over an image that is whitened a little.

    The published code rounds the flakes to 8 bit before and after they are smeared; here nothing
    is rounded before the end.

    Args:
        image: (H, W, C).
        rng: draws the flakes and the direction of their fall.
        mean: of the normal noise that becomes flakes.
        deviation: of that noise.
        zoom: magnification of the flakes.
        threshold: noise below it is no flake.
        radius: of the smear, in pixels.
        sigma: of the smear, in pixels.
        keep: weight of the image itself against its whitened version.
    """
    noise = rng.normal(mean, deviation, (*image.shape[:2], 1))
    flakes = magnify(noise, zoom)
    flakes = np.where(flakes < threshold, 0, np.clip(flakes, 0, 1))
    flakes = smear(flakes, radius, sigma, rng.uniform(-135, -45))
    white = np.maximum(image, luma(image) * 1.5 + 0.5)
    return keep * image + (1 - keep) * white + flakes + np.rot90(flakes, k=2)


def frost(image: np.ndarray, rng: np.random.Generator, keep: float, cover: float) -> np.ndarray:
    """Lay ice over an image.

    ImageNet-C takes crops of six photographs, which may not be shipped; this takes a generated
    texture of their colour, brightness and contrast. Figures are close to those of ImageNet-C's
    frost, not the same.

    Args:
        image: (H, W, C).
        rng: draws the ice.
        keep: weight of the image.
        cover: weight of the ice.
    """
    pattern = ice(image.shape[0], image.shape[1], rng)  # (H, W, 3)
    return keep * image + cover * (luma(pattern) if image.shape[2] == 1 else pattern)


def fog(image: np.ndarray, rng: np.random.Generator, thickness: float, decay: float) -> np.ndarray:
    """Add clouds, then dim by what they may have added at most.

    Args:
        image: (H, W, C).
        rng: draws the clouds.
        thickness: height of the clouds, in units of white.
        decay: their smoothness, see `clouds`.
    """
    height, width, _ = image.shape
    brightest = image.max()
    hidden = image + thickness * clouds(height, width, rng, decay)[..., None]
    return hidden * brightest / (brightest + thickness)


def brightness(image: np.ndarray, rng: np.random.Generator, more: float) -> np.ndarray:
    """Raise the value of each pixel in HSV, the largest of its channels, by `more`, up to 1."""
    value = image.max(axis=2, keepdims=True)
    raised = np.minimum(value + more, 1)
    return np.where(value > 0, image * raised / np.maximum(value, 1e-12), raised)

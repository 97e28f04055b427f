"""Splashes of water or mud on the lens. Images are (H, W, C) in [0, 1]."""

import numpy as np
from scipy import ndimage

from robustness.attacks.corruptions.color import in_channels_of
from robustness.attacks.corruptions.edges import edges

_WATER = (175 / 255, 238 / 255, 238 / 255)
_MUD = (63 / 255, 42 / 255, 20 / 255)
_FARTHEST = 20
_WEAK_EDGE, _STRONG_EDGE = 50, 150
_EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])


def spatter(
    image: np.ndarray,
    rng: np.random.Generator,
    mean: float,
    deviation: float,
    sigma: float,
    threshold: float,
    strength: float,
    muddy: bool,
) -> np.ndarray:
    """Splash water, which lightens, or mud, which covers.

    Args:
        image: (H, W, C).
        rng: draws the splashes.
        mean: of the normal noise that becomes liquid.
        deviation: of that noise.
        sigma: smoothing of the noise, in pixels.
        threshold: smoothed noise below it is dry.
        strength: weight of water; for mud the smoothing of its rim, in pixels.
        muddy: mud instead of water.
    """
    noise = rng.normal(mean, deviation, image.shape[:2])
    liquid = ndimage.gaussian_filter(noise, sigma, mode="nearest")
    liquid = np.where(liquid < threshold, 0, liquid)
    if not muddy:
        return image + _gloss(liquid, strength)[..., None] * in_channels_of(image, _WATER)
    cover = ndimage.gaussian_filter((liquid > threshold).astype(float), strength, mode="nearest")
    cover = np.where(cover < 0.8, 0, cover)[..., None]
    return image * (1 - cover) + cover * in_channels_of(image, _MUD)


def _gloss(liquid: np.ndarray, strength: float) -> np.ndarray:
    """How much light drops add, (H, W): embossed by the distance to the drops' rims.

    Distances are exact, where the published code's library approximates them by steps of a chess
    knight; that is all that differs. No drop at all adds nothing, where that code divides 0 by 0.
    """
    depth = np.floor(np.clip(liquid, 0, 1) * 255)
    rims = edges(depth, weak=_WEAK_EDGE, strong=_STRONG_EDGE)
    distance = np.full(liquid.shape, float(_FARTHEST))
    if rims.any():
        exact = np.asarray(ndimage.distance_transform_edt(~rims))
        distance = np.minimum(exact, _FARTHEST)
    relief = _equalise(np.floor(ndimage.uniform_filter(distance, 3, mode="mirror")))
    relief = np.clip(ndimage.correlate(relief, _EMBOSS, mode="mirror"), 0, 255)
    shine = depth * np.rint(ndimage.uniform_filter(relief, 3, mode="mirror"))
    return strength * shine / shine.max() if shine.max() > 0 else shine


def _equalise(levels: np.ndarray) -> np.ndarray:
    """Spread grey levels so that each range of them is equally common, (H, W) in [0, 255]."""
    codes = levels.astype(np.uint8)
    counts = np.bincount(codes.ravel(), minlength=256)
    lowest = int(np.flatnonzero(counts)[0])
    rest = codes.size - counts[lowest]
    if not rest:
        return levels
    spread = (np.cumsum(counts) - counts[lowest]) * 255 / rest
    return np.rint(np.clip(spread, 0, 255))[codes]

"""Random patterns: clouds, and the ice that stands in for photographs of frost."""

import numpy as np

from robustness.attacks.corruptions.blur import smear

_ICE_TINT = (0.89, 1.02, 1.09)
_ICE_LEVELS = (0.46, 0.76)
_ICE_CONTRAST = 0.12
_NEEDLES = 3


def clouds(height: int, width: int, rng: np.random.Generator, decay: float) -> np.ndarray:
    """Plasma fractal: a height map by the diamond-square algorithm.

    It is drawn on the smallest square that holds it whose side is a power of two, wraps round
    there, and spans 0 to 1 over that square. The random part of a point is divided by the square
    of `decay` from one scale to the next finer one, as in the published code.

    Args:
        height: rows.
        width: columns.
        rng: draws the heights.
        decay: larger is smoother.

    Returns:
        (height, width) in [0, 1].

    Source: Fournier, Fussell & Carpenter 1982.
    """
    side = max(2, 1 << (max(height, width) - 1).bit_length())
    heights = np.zeros((side, side))
    step, swing = side, 1.0
    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        pairs = corners + np.roll(corners, -1, 0)
        centres = (pairs + np.roll(pairs, -1, 1)) / 4 + _wobble(corners, swing, rng)
        heights[half::step, half::step] = centres
        across = corners + np.roll(corners, -1, 1) + centres + np.roll(centres, 1, 0)
        heights[::step, half::step] = across / 4 + _wobble(corners, swing, rng)
        along = corners + np.roll(corners, -1, 0) + centres + np.roll(centres, 1, 1)
        heights[half::step, ::step] = along / 4 + _wobble(corners, swing, rng)
        step, swing = half, swing / decay**2
    heights -= heights.min()
    return (heights / heights.max())[:height, :width]


def _wobble(like: np.ndarray, swing: float, rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(-swing, swing, like.shape)


def ice(height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """A texture in place of ImageNet-C's photographs of frost: needles over uneven haze.

    Its mean colour, its range of brightness from one picture to the next and its contrast within
    one are those of the photographs; what it shows is not.

    Returns:
        (height, width, 3) in [0, 1].
    """
    grain = rng.normal(size=(height, width, 1))
    needles = [smear(grain, 4, 3, degrees) for degrees in rng.uniform(0, 360, _NEEDLES)]
    haze = _standardised(clouds(height, width, rng, 1.7))
    relief = _standardised(np.max(needles, axis=0)[..., 0]) + haze
    bright = rng.uniform(*_ICE_LEVELS) + _ICE_CONTRAST * _standardised(relief)
    return np.clip(bright[..., None] * np.array(_ICE_TINT), 0, 1)


def _standardised(pattern: np.ndarray) -> np.ndarray:
    return (pattern - pattern.mean()) / max(float(pattern.std()), 1e-12)

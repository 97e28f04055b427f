"""One corruption, by name and severity, of one image.

The fifteen corruptions of ImageNet-C and its four extra ones, for images of any size, grey or in
colour. Images of at most 64 pixels a side get the constants of CIFAR-10-C, larger ones those of
ImageNet-C; a corruption's own module says where it differs from the published code. In general:
the result is rounded to 8 bit, not cut off, and not compressed once more as ImageNet-C's files are.
"""

from collections.abc import Callable

import numpy as np

from core.names import nearest
from robustness.attacks.corruptions import blur, digital, noise, weather
from robustness.attacks.corruptions.severity import LARGE, SMALL
from robustness.attacks.corruptions.spatter import spatter

Effect = Callable[..., np.ndarray]
"""(image (H, W, C) float64 in [0, 1], generator, *constants) -> an image of the same shape."""

_SMALL_SIDE = 64
_SEVERITIES = range(1, 6)

_BENCHMARK: dict[str, Effect] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
}
_EXTRA: dict[str, Effect] = {
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": spatter,
    "saturate": digital.saturate,
}
_EFFECTS = _BENCHMARK | _EXTRA

NAMES = tuple(_BENCHMARK)
"""The fifteen corruptions that the mean corruption error is defined on."""
EXTRA_NAMES = tuple(_EXTRA)
"""The four that ImageNet-C keeps for validation."""


def corrupt(pixels: np.ndarray, name: str, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Corrupt one image.

    Args:
        pixels: (C, H, W) uint8 with C = 1 or 3.
        name: one of `NAMES` or `EXTRA_NAMES`.
        severity: 1 (weak) to 5 (strong).
        rng: the only source of chance.

    Returns:
        (C, H, W) uint8, a new array.

    Raises:
        ValueError: an unknown name, a severity out of range, or pixels of another kind.

    Source: Hendrycks & Dietterich 2019.
    """
    if name not in _EFFECTS:
        hint = nearest(name, _EFFECTS)
        raise ValueError(f"name must be a known corruption, got {name!r}; {hint}")
    if severity not in _SEVERITIES:
        raise ValueError(f"severity must be a whole number from 1 to 5, got {severity}")
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or len(pixels) not in (1, 3):
        raise ValueError(f"pixels must be (1 or 3, H, W) uint8, got {pixels.shape} {pixels.dtype}")
    levels = SMALL if max(pixels.shape[1:]) <= _SMALL_SIDE else LARGE
    image = pixels.transpose(1, 2, 0) / 255  # (H, W, C)
    result = _EFFECTS[name](image, rng, *levels[name][severity - 1])
    eight_bit = np.rint(np.clip(result, 0, 1) * 255).astype(np.uint8)
    return np.ascontiguousarray(eight_bit.transpose(2, 0, 1))  # (C, H, W)

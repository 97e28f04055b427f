"""One corruption, by name and severity, of one image.

The fifteen corruptions of ImageNet-C and its four extra ones, for images of any size, grey or in
colour. Images of at most 64 pixels a side get the published constants of CIFAR-10-C, larger ones
those of ImageNet-C (Hendrycks & Dietterich 2019); a corruption itself says where it differs from
the published code. In general: the result is rounded to 8 bit, not cut off, and not compressed
once more as ImageNet-C's files are.
"""

from collections.abc import Callable

import numpy as np

from robustness.attacks.corruptions import digital, noise, weather

Effect = Callable[..., np.ndarray]
"""(image (H, W, C) float64 in [0, 1], generator, *constants) -> an image of the same shape."""

Levels = tuple[tuple[float, ...], ...]
"""Constants of a corruption at severities 1 to 5, those that follow image and generator."""

_SMALL_SIDE = 64
_EFFECTS: dict[str, Effect] = {
    effect.__name__: effect
    for effect in (
        noise.gaussian_noise, noise.shot_noise, noise.impulse_noise, noise.speckle_noise,
        noise.defocus_blur, noise.glass_blur, noise.motion_blur, noise.zoom_blur,
        noise.gaussian_blur, weather.snow, weather.frost, weather.fog, weather.brightness,
        weather.spatter, digital.contrast, digital.elastic_transform, digital.pixelate,
        digital.jpeg_compression, digital.saturate,
    )
}  # fmt: skip


def corrupt(pixels: np.ndarray, name: str, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Corrupt one image.

    Args:
        pixels: (C, H, W) uint8 with C = 1 or 3.
        name: of the corruption.
        severity: 1 (weak) to 5 (strong).
        rng: the only source of chance.

    Returns:
        (C, H, W) uint8, a new array.

    Raises:
        ValueError: pixels of another kind.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or len(pixels) not in (1, 3):
        raise ValueError(f"pixels must be (1 or 3, H, W) uint8, got {pixels.shape} {pixels.dtype}")
    levels = SMALL if max(pixels.shape[1:]) <= _SMALL_SIDE else LARGE
    image = pixels.transpose(1, 2, 0) / 255  # (H, W, C)
    result = _EFFECTS[name](image, rng, *levels[name][severity - 1])
    eight_bit = np.rint(np.clip(result, 0, 1) * 255).astype(np.uint8)
    return np.ascontiguousarray(eight_bit.transpose(2, 0, 1))  # (C, H, W)


LARGE: dict[str, Levels] = {
    "gaussian_noise": ((0.08,), (0.12,), (0.18,), (0.26,), (0.38,)),
    "shot_noise": ((60,), (25,), (12,), (5,), (3,)),
    "impulse_noise": ((0.03,), (0.06,), (0.09,), (0.17,), (0.27,)),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": ((0.11, 0.01), (0.16, 0.01), (0.21, 0.02), (0.26, 0.02), (0.31, 0.03)),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
    "contrast": ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
    # In pixels of a side of 244, although the images have 224: as published.
    "elastic_transform": tuple(
        tuple(length * 244 / 224 for length in row)
        for row in (
            (2, 0.7, 0.1),
            (2, 0.08, 0.2),
            (0.05, 0.01, 0.02),
            (0.07, 0.01, 0.02),
            (0.12, 0.01, 0.02),
        )
    ),
    "pixelate": ((0.6,), (0.5,), (0.4,), (0.3,), (0.25,)),
    "jpeg_compression": ((25,), (18,), (15,), (10,), (7,)),
    "speckle_noise": ((0.15,), (0.2,), (0.35,), (0.45,), (0.6,)),
    "gaussian_blur": ((1,), (2,), (3,), (4,), (6,)),
    "spatter": (
        (0.65, 0.3, 4, 0.69, 0.6, False),
        (0.65, 0.3, 3, 0.68, 0.6, False),
        (0.65, 0.3, 2, 0.68, 0.5, False),
        (0.65, 0.3, 1, 0.65, 1.5, True),
        (0.67, 0.4, 1, 0.65, 1.5, True),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
}

SMALL: dict[str, Levels] = {
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((0.06, 0.01), (0.11, 0.01), (0.16, 0.01), (0.21, 0.01), (0.26, 0.01)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    "elastic_transform": (
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),
    "speckle_noise": ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,)),
    "gaussian_blur": ((0.4,), (0.6,), (0.7,), (0.8,), (1,)),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
}

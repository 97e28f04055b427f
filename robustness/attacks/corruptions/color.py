"""Colours of images, (H, W, C) in [0, 1] with C = 1 or 3."""

import numpy as np

_LUMA = np.array([0.299, 0.587, 0.114])


def luma(image: np.ndarray) -> np.ndarray:
    """Brightness (H, W, 1) as BT.601 weighs red, green and blue; a grey image itself."""
    return image if image.shape[2] == 1 else (image @ _LUMA)[..., None]


def in_channels_of(image: np.ndarray, rgb: tuple[float, float, float]) -> np.ndarray:
    """A colour (C,) in as many channels as an image has: itself, or its brightness."""
    colour = np.array(rgb)
    return colour if image.shape[2] == 3 else np.array([colour @ _LUMA])

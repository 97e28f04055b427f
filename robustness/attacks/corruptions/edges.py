"""Rims of shapes in a grey image."""

import numpy as np
from scipy import ndimage

_STEPS = ((0, 1), (1, 0), (1, 1), (1, -1))
"""(rows, columns) from a pixel to the next one along a gradient: right, down, two diagonals."""


def edges(grey: np.ndarray, *, weak: float, strong: float) -> np.ndarray:
    """Edges one pixel wide by Canny's method, without smoothing first.

    Args:
        grey: (H, W) in [0, 255].
        weak: pixels with a smaller gradient are no edge.
        strong: a connected edge has at least one pixel with a larger gradient.

    Returns:
        (H, W) bool.

    Source: Canny 1986; gradients are Sobel's, |dx| + |dy| long, as in the library that ImageNet-C
    used.
    """
    down = ndimage.sobel(grey, axis=0, mode="nearest")
    right = ndimage.sobel(grey, axis=1, mode="nearest")
    slope = np.abs(down) + np.abs(right)
    thin = _peaks(slope, down, right) & (slope > weak)
    connected = ndimage.generate_binary_structure(2, 2)
    return ndimage.binary_propagation(thin & (slope > strong), structure=connected, mask=thin)


def _peaks(slope: np.ndarray, down: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Where the slope is larger than at both neighbours along the gradient, (H, W) bool."""
    angle = np.arctan2(np.abs(down), np.abs(right))
    direction = np.select(
        [angle < np.pi / 8, angle > 3 * np.pi / 8, down * right >= 0], [0, 1, 2], 3
    )
    padded = np.pad(slope, 1)
    height, width = slope.shape
    peaks = np.zeros(slope.shape, bool)
    for number, (dy, dx) in enumerate(_STEPS):
        before = padded[1 - dy : 1 - dy + height, 1 - dx : 1 - dx + width]
        after = padded[1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]
        # Of two equal neighbours the former stays; on a diagonal neither, as in that library.
        later = slope >= after if number < 2 else slope > after
        peaks |= (direction == number) & (slope > before) & later
    return peaks

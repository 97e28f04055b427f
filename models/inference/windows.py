"""Segment images larger than the model's: windows that overlap, their logits averaged.

Source: Strudel et al. 2021, section 4.1 ("sliding-window inference").
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from models.segmenter import Segmenter


def segment(model: Segmenter, images: Tensor, *, stride: int | None = None) -> Tensor:
    """Logits of images of any size from that of the model on.

    Args:
        model: sees windows of its `img_size`, row by row; the last ones end with the image.
        images: (B, C, H, W), pixels in [0, 1].
        stride: pixels from one window to the next; None for the window's size, so that windows
            overlap only where they do not fill the image.

    Returns:
        (B, K, H, W), at each pixel the mean over the windows that hold it.

    Raises:
        ValueError: an image smaller than the window, or a stride that leaves pixels out.
    """
    size = model.config.img_size
    stride = size if stride is None else stride
    if not 1 <= stride <= size:
        raise ValueError(f"stride must be from 1 to the window's size {size}, got {stride}")
    if min(images.shape[-2:]) < size:
        sides = " x ".join(map(str, images.shape[-2:]))
        raise ValueError(f"images must be at least as large as the window, {size}, got {sides}")
    B, _, H, W = images.shape
    total = images.new_zeros(B, model.config.num_classes, H, W)
    for window in windows(H, W, size, stride):
        total[..., window[0], window[1]] += model(images[..., window[0], window[1]])
    return total / coverage(H, W, size, stride).to(total)


def windows(height: int, width: int, size: int, stride: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of each window of an image."""
    for top in _starts(height, size, stride):
        for left in _starts(width, size, stride):
            yield slice(top, top + size), slice(left, left + size)


def coverage(height: int, width: int, size: int, stride: int) -> Tensor:
    """How many windows hold each pixel, (height, width) int64."""
    counts = torch.zeros(height, width, dtype=torch.int64)
    for rows, columns in windows(height, width, size, stride):
        counts[rows, columns] += 1
    return counts


def _starts(length: int, size: int, stride: int) -> list[int]:
    """Where the windows along one side begin."""
    return [*range(0, length - size, stride), length - size]

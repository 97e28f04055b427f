"""RandAugment over batches in torch: each image gets some of 15 operations, drawn at random.

Source: Cubuk et al., "RandAugment", 2020, with DeiT's settings: the strength grows with the
magnitude in every operation, varies a little from image to image, and an operation that was drawn
is done with probability 1/2. The operations are those of Pillow's ImageOps and ImageEnhance.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from training.draws import Draws

_SPREAD = 0.5  # of the magnitude, which is at most 10
_FILL = 0.5  # of what a moved image leaves free


def rand_augment(images: Tensor, operations: int, *, magnitude: float, draws: Draws) -> Tensor:
    """Change each image by operations of its own.

    Args:
        images: (B, C, H, W), pixels in [0, 1].
        operations: how many are drawn for each image.
        magnitude: their mean strength, from 0 to 10.
        draws: source of the draws.

    Returns:
        (B, C, H, W), pixels in [0, 1].
    """
    for _ in range(operations):
        level = ((magnitude + _SPREAD * draws.normal(1, 1, 1)) / 10).clamp(0, 1)
        sign = torch.where(draws.uniform(1, 1, 1) < 0.5, -1.0, 1.0)
        # The second half of the numbers stands for doing nothing.
        drawn = draws.integers(0, 2 * len(OPERATIONS))
        images = images.clone()
        for number, operation in enumerate(OPERATIONS):
            own = (drawn == number).nonzero().squeeze(1)
            if len(own):
                images[own] = operation(images[own], level[own], sign[own])
    return images


def blend(other: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Go from `other` (factor 0) to the images (factor 1) and beyond; stays in [0, 1]."""
    return (other + factor * (images - other)).clamp(0, 1)


def grey(images: Tensor) -> Tensor:
    """Brightness (B, 1, H, W) of images with one or three channels, as ITU-R BT.601 weighs them."""
    if images.shape[1] == 1:
        return images
    weights = torch.tensor([0.299, 0.587, 0.114], device=images.device).view(1, 3, 1, 1)
    return (images * weights).sum(1, keepdim=True)


def auto_contrast(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Stretch each channel to the whole range."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    span = high - low
    return torch.where(span > 0, (images - low) / span.clamp_min(1e-6), images).clamp(0, 1)


def equalize(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Make the histogram of each channel flat, in 256 steps."""
    B, C, H, W = images.shape
    values = (images * 255).round().long().reshape(B * C, H * W)
    histogram = torch.zeros(B * C, 256, dtype=torch.int64, device=images.device)
    histogram.scatter_add_(1, values, torch.ones_like(values))
    last = histogram.gather(1, values.amax(1, keepdim=True))
    step = (H * W - last) // 255
    below = histogram.cumsum(1) - histogram
    table = ((below + step // 2) // step.clamp_min(1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device))
    return table.gather(1, values).view(B, C, H, W).to(images.dtype) / 255


def invert(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Turn dark into light."""
    return 1 - images


def rotate(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Turn by up to 30 degrees."""
    angle = (sign * level * math.radians(30)).flatten()
    cos, sin = angle.cos(), angle.sin()
    return _warp(images, _rows(cos, -sin, 0 * cos), _rows(sin, cos, 0 * cos))


def posterize(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Keep 4 bits of each value, and fewer at a higher level."""
    step = 2.0 ** (4 + (level * 4).floor())
    return ((images * 255).round() / step).floor() * step / 255


def solarize(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Invert what is brighter than a threshold that falls with the level."""
    return torch.where(images < 1 - level, images, 1 - images)


def solarize_add(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Brighten what is darker than the middle by up to 110 of 255."""
    return torch.where(images < 0.5, (images + level * 110 / 255).clamp(max=1), images)


def color(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Change the saturation by up to 90 %."""
    return blend(grey(images), images, 1 + 0.9 * sign * level)


def contrast(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Change the contrast by up to 90 %."""
    return blend(grey(images).mean((1, 2, 3), keepdim=True), images, 1 + 0.9 * sign * level)


def brightness(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Change the brightness by up to 90 %."""
    return (images * (1 + 0.9 * sign * level)).clamp(0, 1)


def sharpness(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Sharpen or smooth by up to 90 %; the outermost pixels stay as they are."""
    kernel = torch.ones(3, 3, device=images.device)
    kernel[1, 1] = 5
    channels = images.shape[1]
    weight = (kernel / kernel.sum()).expand(channels, 1, 3, 3)
    smooth = images.clone()
    smooth[:, :, 1:-1, 1:-1] = F.conv2d(images, weight, groups=channels)
    return blend(smooth, images, 1 + 0.9 * sign * level)


def shear_x(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Shear along the rows by up to 0.3."""
    amount = 0.3 * (sign * level).flatten()
    one, zero = torch.ones_like(amount), torch.zeros_like(amount)
    return _warp(images, _rows(one, amount, zero), _rows(zero, one, zero))


def shear_y(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Shear along the columns by up to 0.3."""
    amount = 0.3 * (sign * level).flatten()
    one, zero = torch.ones_like(amount), torch.zeros_like(amount)
    return _warp(images, _rows(one, zero, zero), _rows(amount, one, zero))


def translate_x(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Move along the rows by up to 45 % of the width."""
    amount = 0.9 * (sign * level).flatten()  # the width is 2 in the coordinates of a warp
    one, zero = torch.ones_like(amount), torch.zeros_like(amount)
    return _warp(images, _rows(one, zero, amount), _rows(zero, one, zero))


def translate_y(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Move along the columns by up to 45 % of the height."""
    amount = 0.9 * (sign * level).flatten()
    one, zero = torch.ones_like(amount), torch.zeros_like(amount)
    return _warp(images, _rows(one, zero, zero), _rows(zero, one, amount))


OPERATIONS = (
    auto_contrast,
    equalize,
    invert,
    rotate,
    posterize,
    solarize,
    solarize_add,
    color,
    contrast,
    brightness,
    sharpness,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
)
"""Each takes images (B, C, H, W), levels in [0, 1] and signs, both (B, 1, 1, 1)."""


def _rows(*entries: Tensor) -> Tensor:
    return torch.stack(entries, dim=-1)  # (B, 3)


def _warp(images: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Sample each image where the rows of its matrix, (B, 3) both, send the pixels."""
    theta = torch.stack((first, second), dim=1)  # (B, 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    moved = F.grid_sample(images - _FILL, grid, mode="bilinear", align_corners=False)
    return (moved + _FILL).clamp(0, 1)

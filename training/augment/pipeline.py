"""Augmentation of image batches, each image on its own: (B, C, H, W) in [0, 1] to the same.

Order and strengths are those of DeiT's training (Touvron et al. 2021, section 6); the operations of
RandAugment are in `rand_augment`, those that mix images in `mixing`.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from training.augment.rand_augment import blend, grey, rand_augment
from training.data_recipe import ImageData
from training.draws import Draws

_ERASED_AREA = (0.02, 1 / 3)
_ERASED_ASPECT = (0.3, 1 / 0.3)


def augment(images: Tensor, data: ImageData, draws: Draws) -> Tensor:
    """Do to a batch all that a recipe asks for.

    Args:
        images: (B, C, H, W), pixels in [0, 1].
        data: strengths.
        draws: source of the draws.

    Returns:
        (B, C, H, W), pixels in [0, 1].
    """
    if data.flip:
        images = flip(images, draws)
    if data.shift:
        images = move(images, data.shift, draws)
    if data.rand_augment:
        images = rand_augment(images, data.rand_augment, magnitude=data.magnitude, draws=draws)
    if data.color_jitter:
        images = color_jitter(images, data.color_jitter, draws)
    if data.erase:
        images = erase(images, data.erase, draws)
    return images


def flip(images: Tensor, draws: Draws) -> Tensor:
    """Mirror each image left and right with probability 1/2."""
    return torch.where(draws.uniform(1, 1, 1) < 0.5, images.flip(-1), images)


def move(images: Tensor, shift: int, draws: Draws) -> Tensor:
    """Move each image by up to `shift` pixels along each axis, filling with zero."""
    B, C, H, W = images.shape
    padded = F.pad(images, (shift,) * 4)
    top, left = draws.integers(0, 2 * shift + 1, 2, 1, 1).unbind(1)  # each (B, 1, 1)
    device = images.device
    rows = (top + torch.arange(H, device=device)[:, None])[:, None]  # (B, 1, H, 1)
    columns = (left + torch.arange(W, device=device))[:, None]  # (B, 1, 1, W)
    samples = torch.arange(B, device=device).view(B, 1, 1, 1)
    channels = torch.arange(C, device=device).view(1, C, 1, 1)
    return padded[samples, channels, rows, columns]


def color_jitter(images: Tensor, strength: float, draws: Draws) -> Tensor:
    """Change brightness, contrast and saturation by factors in [1 - strength, 1 + strength]."""
    factors = 1 + strength * (2 * draws.uniform(3, 1, 1, 1) - 1)  # (B, 3, 1, 1, 1)
    brightness, contrast, saturation = factors.unbind(1)
    images = (images * brightness).clamp(0, 1)
    images = blend(grey(images).mean((1, 2, 3), keepdim=True), images, contrast)
    return blend(grey(images), images, saturation)


def erase(images: Tensor, probability: float, draws: Draws) -> Tensor:
    """Fill a rectangle of each image with noise, with some probability.

    Args:
        images: (B, C, H, W).
        probability: share of images to erase from.
        draws: source of the draws.

    Source: Zhong et al., "Random erasing data augmentation", 2020; the noise is uniform [ours].
    """
    B, _, H, W = images.shape
    chosen, area, aspect, top, left = draws.uniform(5, 1, 1, 1).unbind(1)  # each (B, 1, 1, 1)
    low, high = _ERASED_AREA
    area = (low + area * (high - low)) * H * W
    narrow, wide = (math.log(bound) for bound in _ERASED_ASPECT)
    aspect = (narrow + aspect * (wide - narrow)).exp()
    height = (area * aspect).sqrt().round().clamp(1, H)
    width = (area / aspect).sqrt().round().clamp(1, W)
    top, left = (top * (H - height + 1)).floor(), (left * (W - width + 1)).floor()
    rows = torch.arange(H, device=images.device).view(1, 1, H, 1)
    columns = torch.arange(W, device=images.device).view(1, 1, 1, W)
    inside = (rows >= top) & (rows < top + height) & (columns >= left) & (columns < left + width)
    return torch.where(inside & (chosen < probability), draws.uniform(*images.shape[1:]), images)

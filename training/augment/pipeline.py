"""Augmentation of image batches, each image on its own: (B, C, H, W) in [0, 1] to the same.

Order and strengths are those of DeiT's training (Touvron et al. 2021, section 6); the operations of
RandAugment are in `rand_augment`. Mixup and CutMix mix each image with its neighbor in the batch,
the first with the second, the third with the fourth and so on, by one share for the whole batch:
the order of a batch is random already, and such pairs stay together when processes share a batch.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from training.augment.rand_augment import blend, grey, rand_augment
from training.draws import Draws
from training.recipe import ImageData

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


def mix(
    images: Tensor,
    labels: Tensor,
    *,
    num_classes: int,
    mixup: float,
    cutmix: float,
    draws: Draws,
) -> tuple[Tensor, Tensor]:
    """Mix a batch by mixup (Zhang et al. 2018) or CutMix (Yun et al. 2019), each half the time.

    Args:
        images: (B, C, H, W), B even.
        labels: (B,) int64.
        num_classes: number of classes K.
        mixup: both parameters of the Beta distribution of mixup's share; 0 does none.
        cutmix: the same for CutMix; not both are 0.
        draws: source of the draws.

    Returns:
        Images (B, C, H, W) and shares of the classes (B, K).
    """
    targets = F.one_hot(labels, num_classes).to(images.dtype)
    others = _neighbors(images)
    if cutmix and (not mixup or draws.chance() < 0.5):
        images, share = _cut(images, others, 1 - draws.beta(cutmix), draws)
    else:
        share = draws.beta(mixup)
        images = share * images + (1 - share) * others
    return images, share * targets + (1 - share) * _neighbors(targets)


def _neighbors(values: Tensor) -> Tensor:
    return values.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


def _cut(images: Tensor, others: Tensor, area: float, draws: Draws) -> tuple[Tensor, float]:
    """Paste a box of the others, and say which share of the pixels stayed."""
    H, W = images.shape[-2:]
    side = area**0.5
    row, column = draws.chance() * H, draws.chance() * W
    top, bottom = (round(min(max(row + sign * side * H / 2, 0), H)) for sign in (-1, 1))
    left, right = (round(min(max(column + sign * side * W / 2, 0), W)) for sign in (-1, 1))
    images = images.clone()
    images[..., top:bottom, left:right] = others[..., top:bottom, left:right]
    return images, 1 - (bottom - top) * (right - left) / (H * W)

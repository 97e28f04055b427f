"""Augmentation of image batches, each image on its own: (B, C, H, W) in [0, 1] to the same.

Order and strengths are those of DeiT's training (Touvron et al. 2021, section 6). Mixup and CutMix
mix each image with its neighbor in the batch, the first with the second, the third with the fourth
and so on, by one share for the whole batch: the order of a batch is random already, and such pairs
stay together when processes share a batch.

RandAugment (Cubuk et al. 2020) as DeiT sets it: each image gets some of 15 operations, drawn at
random; the strength grows with the magnitude in every one, varies a little from image to image, and
what was drawn is done with probability 1/2. They are those of Pillow's ImageOps and ImageEnhance.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from training.draws import Draws
from training.recipe import ImageData, MaskData

_ERASED_AREA = (0.02, 1 / 3)
_ERASED_ASPECT = (0.3, 1 / 0.3)
_SPREAD = 0.5  # of the magnitude, which is at most 10
_FILL = 0.5  # of what a moved image leaves free
_PATCH_CHANCE = 0.1  # of each change of a patch
_PATCH_AREA = 0.85  # the least that a patch is cropped to
_PATCH_NOISE = 0.01 * 0.226  # 0.01 after normalization, by the mean std of ImageNet's channels


def augment(images: Tensor, data: ImageData, draws: Draws) -> Tensor:
    """Do to a batch all that a recipe asks for."""
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
    if data.patches:
        images = change_patches(images, data.patches, draws)
    return images


def augment_masks(
    images: Tensor, masks: Tensor, data: MaskData, draws: Draws
) -> tuple[Tensor, Tensor]:
    """Do to a batch all that a recipe asks for, to masks (B, H, W) what moves their images."""
    if data.flip:
        mirrored = draws.uniform(1, 1) < 0.5
        images = torch.where(mirrored[:, None], images.flip(-1), images)
        masks = torch.where(mirrored, masks.flip(-1), masks)
    if data.color_jitter:
        images = color_jitter(images, data.color_jitter, draws)
    return images, masks


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
    images = blend(flat(images), images, contrast)
    return blend(grey(images), images, saturation)


def erase(images: Tensor, probability: float, draws: Draws) -> Tensor:
    """Fill a rectangle of each image with noise, with some probability.

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


def change_patches(images: Tensor, side: int, draws: Draws) -> Tensor:
    """Crop each square patch, add noise to it and mirror it, each with probability 1/10.

    A crop keeps 85 to 100 % of the area and is enlarged to the patch again.

    Args:
        images: (B, C, H, W), H and W multiples of `side`.
        side: of the patches.
        draws: source of the draws.

    Source: Mao et al., "Towards robust vision transformer", CVPR 2022, section 3.3; probabilities
        and strengths of the authors' code, which changes a second copy of each mixed batch and
        erases its gradient before the step. Here the images that are learned from are changed,
        before they are mixed, and crops have any size, not whole pixels [ours].
    """
    B, C, H, W = images.shape
    rows, columns = H // side, W // side
    grid = images.unflatten(3, (columns, side)).unflatten(2, (rows, side))
    patches = grid.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)  # (B * rows * columns, C, side, side)
    count = rows * columns
    cropped, noisy, mirrored = (draws.uniform(count, 3) < _PATCH_CHANCE).flatten(0, 1).unbind(1)
    own, places = cropped.nonzero().squeeze(1), draws.uniform(count, 3).flatten(0, 1)
    patches = patches.index_put((own,), _crop(patches[own], places[own]))
    noise = _PATCH_NOISE * draws.normal(count, C, side, side).flatten(0, 1)
    patches = torch.where(noisy[:, None, None, None], (patches + noise).clamp(0, 1), patches)
    patches = torch.where(mirrored[:, None, None, None], patches.flip(-1), patches)
    grid = patches.view(B, rows, columns, C, side, side).permute(0, 3, 1, 4, 2, 5)
    return grid.reshape(images.shape)


def _crop(patches: Tensor, places: Tensor) -> Tensor:
    """Enlarge a square part of each patch (B, C, S, S): area and place by (B, 3) in [0, 1)."""
    area, down, right = places.unbind(1)
    share = (_PATCH_AREA + (1 - _PATCH_AREA) * area).sqrt()
    theta = patches.new_zeros(len(patches), 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = share
    theta[:, 0, 2], theta[:, 1, 2] = ((1 - share) * (2 * each - 1) for each in (right, down))
    grid = F.affine_grid(theta, list(patches.shape), align_corners=False)
    return F.grid_sample(patches, grid, padding_mode="border", align_corners=False)


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


def rand_augment(images: Tensor, operations: int, *, magnitude: float, draws: Draws) -> Tensor:
    """Change each image by so many operations of its own, of a mean strength from 0 to 10."""
    for _ in range(operations):
        level = ((magnitude + _SPREAD * draws.normal(1, 1, 1)) / 10).clamp(0, 1)
        sign = torch.where(draws.uniform(1, 1, 1) < 0.5, -1.0, 1.0)
        # The second half of the groups stands for doing nothing.
        groups = draws.groups(2 * len(OPERATIONS))[: len(OPERATIONS)]
        images = images.clone()
        for own, operation in zip(groups, OPERATIONS.values(), strict=True):
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
    theta = torch.stack((cos, -sin, 0 * cos, sin, cos, 0 * cos), dim=1).unflatten(1, (2, 3))
    return _warp(images, theta)


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


def enhance(of: Callable[[Tensor], Tensor], images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Go away from, or towards, what `of` makes of the images, by up to 90 %."""
    return blend(of(images), images, 1 + 0.9 * sign * level)


def smooth(images: Tensor) -> Tensor:
    """The mean of each pixel and its neighbors; the outermost ones stay as they are."""
    kernel = torch.ones(3, 3, device=images.device)
    kernel[1, 1] = 5
    channels = images.shape[1]
    weight = (kernel / kernel.sum()).expand(channels, 1, 3, 3)
    found = images.clone()
    found[:, :, 1:-1, 1:-1] = F.conv2d(images, weight, groups=channels)
    return found


def flat(images: Tensor) -> Tensor:
    """The mean brightness of each image."""
    return grey(images).mean((1, 2, 3), keepdim=True)


def affine(
    row: int, column: int, most: float, images: Tensor, level: Tensor, sign: Tensor
) -> Tensor:
    """Move each image by up to `most` in one entry of its (2, 3) matrix, in coordinates -1 to 1."""
    theta = torch.eye(2, 3, device=images.device).repeat(len(images), 1, 1)
    theta[:, row, column] = most * (sign * level).flatten()
    return _warp(images, theta)


def _warp(images: Tensor, theta: Tensor) -> Tensor:
    """Sample each image where its matrix (2, 3) sends the pixels."""
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    moved = F.grid_sample(images - _FILL, grid, mode="bilinear", align_corners=False)
    return (moved + _FILL).clamp(0, 1)


OPERATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "auto_contrast": auto_contrast,
    "equalize": equalize,
    "invert": invert,
    "rotate": rotate,
    "posterize": posterize,
    "solarize": solarize,
    "solarize_add": solarize_add,
    "color": partial(enhance, grey),
    "contrast": partial(enhance, flat),
    "brightness": partial(enhance, torch.zeros_like),
    "sharpness": partial(enhance, smooth),
    "shear_x": partial(affine, 0, 1, 0.3),
    "shear_y": partial(affine, 1, 0, 0.3),
    "translate_x": partial(affine, 0, 2, 0.9),  # 45 % of a width of 2
    "translate_y": partial(affine, 1, 2, 0.9),
}
"""Each takes images (B, C, H, W), levels in [0, 1] and signs, both (B, 1, 1, 1)."""

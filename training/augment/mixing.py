"""Mixup and CutMix: each image is mixed with its neighbour in the batch, and so are the labels.

Neighbours are the first and second image, the third and fourth, and so on: the order of a batch is
random already, and such pairs stay together when processes share a batch. One share is drawn for
the whole batch.

Source: Zhang et al., "mixup", 2018; Yun et al., "CutMix", 2019; to switch between them with
probability 1/2 is DeiT's (Touvron et al. 2021).
"""

from torch import Tensor
from torch.nn import functional as F

from training.draws import Draws


def mix(
    images: Tensor,
    labels: Tensor,
    *,
    num_classes: int,
    mixup: float,
    cutmix: float,
    draws: Draws,
) -> tuple[Tensor, Tensor]:
    """Mix a batch by mixup or CutMix.

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
    others = _neighbours(images)
    if cutmix and (not mixup or draws.chance() < 0.5):
        images, share = _cut(images, others, 1 - draws.beta(cutmix), draws)
    else:
        share = draws.beta(mixup)
        images = share * images + (1 - share) * others
    return images, share * targets + (1 - share) * _neighbours(targets)


def _neighbours(values: Tensor) -> Tensor:
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

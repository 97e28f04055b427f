"""Augmentation of image batches, each image on its own."""

import torch
from torch import Tensor
from torch.nn import functional as F


def augment(images: Tensor, *, flip: bool, shift: int, generator: torch.Generator) -> Tensor:
    """Mirror half of the images and move each by up to `shift` pixels, filling with zero.

    Args:
        images: (B, C, H, W).
        flip: mirror left and right with probability 1/2.
        shift: largest move in pixels along each axis.
        generator: source of the draws.

    Returns:
        (B, C, H, W), new images.
    """
    B, C, H, W = images.shape
    if flip:
        mirrored = torch.rand(B, 1, 1, 1, generator=generator) < 0.5
        images = torch.where(mirrored, images.flip(-1), images)
    if shift:
        padded = F.pad(images, (shift,) * 4)
        top, left = torch.randint(0, 2 * shift + 1, (2, B, 1, 1), generator=generator)
        rows = (top + torch.arange(H)[:, None])[:, None]  # (B, 1, H, 1)
        columns = (left + torch.arange(W))[:, None]  # (B, 1, 1, W)
        samples = torch.arange(B).view(B, 1, 1, 1)
        images = padded[samples, torch.arange(C).view(1, C, 1, 1), rows, columns]
    return images

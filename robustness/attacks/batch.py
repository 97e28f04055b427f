"""What a batch under attack must be, and the classes that targeted attacks aim at."""

from collections.abc import Sequence

import torch
from torch import Tensor

from robustness.catalog import MAX_TARGETS


def check_batch(images: Tensor, labels: Tensor, seeds: Sequence[int]) -> None:
    """Refuse what the kernels would misunderstand.

    Raises:
        ValueError: images are not (N, C, H, W) float32 in [0, 1], labels not (N,) int64, or there
            is not one seed an image.
    """
    # The kernels clamp silently, which moves a pixel outside [0, 1] by more than eps.
    if images.dtype != torch.float32 or images.ndim != 4:
        raise ValueError(
            f"images must be (N, C, H, W) float32, got {tuple(images.shape)} {images.dtype}"
        )
    if not bool(((images >= 0) & (images <= 1)).all()):
        raise ValueError("images must lie in [0, 1]")
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels must be ({len(images)},) int64, got {tuple(labels.shape)} {labels.dtype}"
        )
    if len(seeds) != len(images):
        raise ValueError(f"seeds must be one an image, {len(images)}, got {len(seeds)}")


def ranked(logits: Tensor, rank: int) -> Tensor:
    """The class of each row at a rank, counted from 1, the likeliest: (N,) int64."""
    return logits.sort(dim=1)[1][:, -rank]


def target_ranks(logits: Tensor) -> range:
    """Ranks of the classes aimed at: the likeliest wrong ones have ranks 2, 3, ..."""
    return range(2, min(MAX_TARGETS, logits.shape[1] - 1) + 2)

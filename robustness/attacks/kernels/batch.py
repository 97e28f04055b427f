"""What gradient attacks share: the rules of a batch, its random draws, logits and gradients."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from robustness.attacks.base import MAX_TARGETS

Model = Callable[[Tensor], Tensor]
"""Logits (B, K) from pixels (B, C, H, W), differentiable."""
_HUGE = 1e15  # stands for an infinite gradient: its square is still finite


def check_batch(images: Tensor, labels: Tensor, seeds: Sequence[int]) -> None:
    """Refuse what an attack would misunderstand.

    Raises:
        ValueError: images are not (N, C, H, W) float32 in [0, 1], labels not (N,) int64, or there
            is not one seed an image.
    """
    # Attacks clamp to [0, 1], which would move a pixel outside by more than eps.
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


def uniform(rng: Sequence[torch.Generator], images: Tensor, low: float, high: float) -> Tensor:
    """Uniform noise like the images (N, C, H, W), each row from its own generator.

    Draws are made on the CPU, so that they are the same on every device.
    """
    shape = images.shape[1:]
    rows = [torch.empty(shape).uniform_(low, high, generator=generator) for generator in rng]
    return torch.stack(rows).to(images.device)


def normal(rng: Sequence[torch.Generator], images: Tensor) -> Tensor:
    """Standard normal noise like the images (N, C, H, W), each row from its own generator."""
    rows = [torch.randn(images.shape[1:], generator=generator) for generator in rng]
    return torch.stack(rows).to(images.device)


def loss_gradient(
    model: Model, images: Tensor, loss: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (B, K), losses (B,) and the gradient (B, C, H, W) of each image's own loss.

    Args:
        model: see `Model`.
        images: (B, C, H, W).
        loss: from logits (B, K) to a loss an image (B,).

    Raises:
        ValueError: the logits carry no gradient.
    """
    images = images.detach().requires_grad_(True)
    with torch.enable_grad():
        logits = model(images)
        if not logits.requires_grad:
            raise ValueError(
                "logits have no gradient; pass the PyTorch model, not the exported one"
            )
        losses = loss(logits)
        # A sum and not a mean: an image's gradient does not depend on the rest of the batch.
        (gradient,) = torch.autograd.grad(losses.sum(), images)
    finite = gradient.nan_to_num(nan=0.0, posinf=_HUGE, neginf=-_HUGE)
    return logits.detach(), losses.detach(), finite

"""Adversarial training: each batch is replaced by its worst images within eps."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def pgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    eps: float,
    alpha: float,
    steps: int,
    generator: torch.Generator,
) -> Tensor:
    """Climb the loss inside the l-infinity ball by signed gradient steps from a random start.

    The model keeps its mode; the gradients of its parameters are not touched.

    Args:
        model: maps (B, C, H, W) in [0, 1] to logits.
        images: (B, C, H, W), pixels in [0, 1].
        labels: (B,) int64.
        eps: radius of the ball, in [0, 1] pixels.
        alpha: size of a step, in [0, 1] pixels.
        steps: number of steps.
        generator: source of the random start.

    Returns:
        (B, C, H, W) images within eps and within [0, 1].

    Source: Madry et al., "Towards Deep Learning Models Resistant to Adversarial Attacks", 2018.
    """
    low, high = (images - eps).clamp(min=0), (images + eps).clamp(max=1)
    noise = torch.rand(images.shape, generator=generator, dtype=images.dtype)
    adv_images = low + noise * (high - low)
    for _ in range(steps):
        adv_images.requires_grad_(True)
        loss = F.cross_entropy(model(adv_images), labels)
        (gradient,) = torch.autograd.grad(loss, adv_images)
        adv_images = (adv_images.detach() + alpha * gradient.sign()).clamp(low, high)
    return adv_images

"""PGD: signed gradient steps up the cross-entropy. FGSM is one step of length eps."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from robustness.attacks.kernels.batch import Model, loss_gradient, uniform


def pgd(
    model: Model,
    images: Tensor,
    labels: Tensor,
    *,
    eps: float,
    alpha: float,
    steps: int,
    rng: Sequence[torch.Generator] | None,
    leave: bool = True,
) -> Tensor:
    """Take signed gradient steps within an l-infinity ball.

    Args:
        model: differentiable logits (B, K) from pixels.
        images: (N, C, H, W) float32 in [0, 1].
        labels: (N,) int64.
        eps: radius in pixel units, e.g. 8 / 255.
        alpha: length of a step, in the same unit.
        steps: how many; the last iterate is not evaluated.
        rng: one generator an image for a uniformly random start; None starts at the image.
        leave: stop for an image at its first fooling iterate, else go on to the last one.

    Returns:
        The first fooling iterates, or the last ones (N, C, H, W).

    Source: Madry et al. 2018, eq. 2.2; Goodfellow et al. 2015 for one step without random start.
    """
    adversarial = images.clone()
    if rng is not None:
        adversarial = (images + uniform(rng, images, -eps, eps)).clamp(0, 1)
    rows = torch.arange(len(images), device=images.device)  # those still attacked
    for _ in range(steps):
        truth = labels[rows]
        logits, _, gradient = loss_gradient(
            model, adversarial[rows], lambda x, y=truth: cross_entropy(x, y, reduction="none")
        )
        if leave:
            right = logits.argmax(1) == truth
            rows, gradient = rows[right], gradient[right]
        if len(rows) == 0:
            break
        clean = images[rows]
        moved = adversarial[rows] + alpha * gradient.sign()
        adversarial[rows] = (clean + (moved - clean).clamp(-eps, eps)).clamp(0, 1)
    return adversarial

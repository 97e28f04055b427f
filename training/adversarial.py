"""Adversarial training: each batch is replaced by its worst images within eps."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.attention.elliptical import metric_gradient
from training.objective import kl_divergence
from training.recipe import AdversarialRecipe

_TRADES_START = 0.001
"""Spread of TRADES' start around the clean images, of the authors' public code."""


def attack(
    model: nn.Module, images: Tensor, targets: Tensor, recipe: AdversarialRecipe, noise: Tensor
) -> Tensor:
    """Find the worst images within a recipe's ball.

    The model is in eval mode meanwhile, so that dropout and batch statistics do not blur the
    gradient, and the gradient takes the path through M, too: without it elliptical attention looks
    more robust than it is. The gradients of its parameters are not touched.

    Args:
        model: maps (B, C, H, W) in [0, 1] to logits.
        images: (B, C, H, W), pixels in [0, 1].
        targets: (B,) int64 labels, or (B, K) shares of the classes.
        recipe: method, radius, step and number of steps.
        noise: (B, C, H, W) in [0, 1), from which the start is made.

    Returns:
        (B, C, H, W) images within eps and within [0, 1].
    """
    training = model.training
    model.eval()
    ball = {"eps": recipe.eps, "alpha": recipe.alpha, "steps": recipe.steps}
    with metric_gradient(model, True):
        if recipe.method == "pgd":
            found = pgd(model, images, targets, noise=noise, **ball)
        else:
            found = trades(model, images, noise=noise, **ball)
    model.train(training)
    return found


def pgd(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    *,
    eps: float,
    alpha: float,
    steps: int,
    noise: Tensor,
) -> Tensor:
    """Climb the loss by signed gradient steps from a random start in the ball; see `attack`.

    Source: Madry et al., "Towards Deep Learning Models Resistant to Adversarial Attacks", 2018.
    """
    low, high = (images - eps).clamp(min=0), (images + eps).clamp(max=1)
    start = low + noise * (high - low)
    return _climb(lambda x: F.cross_entropy(model(x), targets), start, low, high, alpha, steps)


def trades(
    model: nn.Module, images: Tensor, *, eps: float, alpha: float, steps: int, noise: Tensor
) -> Tensor:
    """Climb the KL divergence from the clean prediction, from beside the images; see `attack`.

    Source: Zhang et al. 2019 (TRADES), algorithm 1; the start as in the authors' public code,
        uniform instead of normal.
    """
    low, high = (images - eps).clamp(min=0), (images + eps).clamp(max=1)
    with torch.no_grad():
        logits = model(images)
    start = (images + _TRADES_START * (2 * noise - 1)).clamp(low, high)
    return _climb(lambda x: kl_divergence(logits, model(x)), start, low, high, alpha, steps)


def _climb(
    loss: Callable[[Tensor], Tensor],
    images: Tensor,
    low: Tensor,
    high: Tensor,
    alpha: float,
    steps: int,
) -> Tensor:
    for _ in range(steps):
        images.requires_grad_(True)
        (gradient,) = torch.autograd.grad(loss(images), images)
        images = (images.detach() + alpha * gradient.sign()).clamp(low, high)
    return images

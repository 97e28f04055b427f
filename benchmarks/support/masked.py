"""Models that look more robust than they are: masks around a network that keep its classes.

The class of a masked model is that of the network inside at every image, so that both are fooled
by the same images, and an attack on the network says what an attack on the mask should find.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

_HARD = 100.0  # what `Saturated` multiplies logits by
_GROUPS, _SLOPE, _DEPTH = 200, 1.0, 1.0  # `Sparse`: projections, their scale, natural logarithm
_STEPS, _ALPHA = 2, 0.15  # as published


def middle(logits: Tensor) -> Tensor:
    """Halfway between the two largest logits (B, K), as (B, 1): only the largest lies above."""
    return logits.topk(2, dim=1).values.mean(1, keepdim=True)


class Saturated(nn.Module):
    """Gradient-masked: scores that are flat, in float32, but for images next to the boundary.

    There is neither a gradient nor a difference of scores to follow. Source: the underflow of
    distilled networks, Carlini & Wagner 2017, "Towards evaluating the robustness of neural
    networks", section VIII.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        """Scores (B, K) in [-1, 1] from pixels (B, C, H, W)."""
        logits = self.inner(images)
        return torch.tanh(_HARD * (logits - middle(logits)))


class Sparse(nn.Module):
    """Sparse activation: of each group of units one wins, and its activation scales the scores.

    The units of a group read the same projection of the image, at evenly spaced thresholds; the
    nearest wins. Its activation rises steeply and falls back where the next unit wins, so that the
    gradient says nothing about a step. Source of the idea: Xiao et al. 2020, "Enhancing adversarial
    defense by k-winners-take-all".
    """

    def __init__(self, inner: nn.Module, pixels: int, classes: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.inner = inner
        self.register_buffer("into", torch.randn(_GROUPS, pixels, generator=draw) * _SLOPE)
        self.register_buffer("out", torch.randn(classes, _GROUPS, generator=draw))

    def forward(self, images: Tensor) -> Tensor:
        """Scores (B, K) from pixels (B, C, H, W)."""
        logits = self.inner(images)
        projected = images.flatten(1) @ self.get_buffer("into").T
        winners = projected.detach().round()  # the nearest threshold of each group
        spread = (projected - winners) @ self.get_buffer("out").T * (12 / _GROUPS) ** 0.5
        return (logits - middle(logits)) * torch.exp(_DEPTH * spread)


class Purifying(nn.Module):
    """Input-purifying: answers for an image that was moved towards the class it has.

    Source: Alfarra et al. 2022, "Combating adversaries with anti-adversaries", algorithm 1.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) from pixels (B, C, H, W)."""
        moved = images.detach()
        own = None
        with torch.enable_grad():
            for _ in range(_STEPS):
                moved = moved.requires_grad_(True)
                logits = self.inner(moved)
                own = logits.argmax(1) if own is None else own
                [gradient] = torch.autograd.grad(cross_entropy(logits, own, reduction="sum"), moved)
                moved = (moved - _ALPHA * gradient.sign()).detach()
        return self.inner(images + (moved - images.detach()))

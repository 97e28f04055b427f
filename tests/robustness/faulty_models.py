"""Small models with one fault each, served as their own PyTorch model."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from robustness.target import Target
from tests.robustness.conftest import ModuleRuntime

Change = Callable[[Tensor], Tensor]


class Changed(nn.Module):
    """A model whose inputs or outputs are changed."""

    def __init__(
        self, inner: nn.Module, *, before: Change | None = None, after: Change | None = None
    ) -> None:
        super().__init__()
        self.inner = inner
        self.before, self.after = before, after

    def forward(self, images: Tensor) -> Tensor:
        logits = self.inner(images if self.before is None else self.before(images))
        return logits if self.after is None else self.after(logits)


class Hiding(nn.Module):
    """Far from gray the answer is class 0 for any input, without a gradient."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        far = (images - 0.5).abs().amax((1, 2, 3)) > 0.3
        hidden = 0 * images.sum((1, 2, 3))[:, None] + torch.tensor([9.0, 0, 0])
        return torch.where(far[:, None], hidden, self.inner(images))


def put(target: Target, module: nn.Module, at: str = "both") -> Target:
    """The target with a module as its PyTorch model ("torch"), as what is "served", or as both."""
    torch_model = target.torch_model if at == "served" else module
    runtime = target.runtime if at == "torch" else ModuleRuntime(module)
    return replace(target, torch_model=torch_model, runtime=runtime)


def noise(logits: Tensor) -> Tensor:
    """A little noise, drawn afresh in every call."""
    draw = np.random.default_rng()
    return logits + torch.from_numpy(draw.normal(size=tuple(logits.shape)) / 100).float()


def rounded(images: Tensor) -> Tensor:
    """Sixteen levels of grey; their gradient is zero."""
    return (images * 15).round() / 15


def straight_through(images: Tensor) -> Tensor:
    """Sixteen levels of grey with the gradient of the unrounded image."""
    return images + (rounded(images) - images).detach()


def reversed_gradient(values: Tensor) -> Tensor:
    """The same values with the negative gradient."""
    return 2 * values.detach() - values


def hidden_border(logits: Tensor) -> Tensor:
    """Logits whose gradient leads away from the border of two classes once it is near."""
    top = logits.detach().topk(2, dim=1).values
    near = (top[:, 0] - top[:, 1] < 0.3)[:, None]
    return torch.where(near, reversed_gradient(logits), logits)


def blurred_gradient(images: Tensor) -> Tensor:
    """The same images, with a gradient that passes through a blur of 7 by 7 pixels only."""
    blurred = nn.functional.avg_pool2d(images, 7, stride=1, padding=3)
    return blurred + (images - blurred).detach()


def sparse_gradient(images: Tensor) -> Tensor:
    """The same images, with a gradient in one pixel of 16."""
    kept = torch.zeros_like(images)
    kept[..., ::4, ::4] = 1
    return images * kept + (images * (1 - kept)).detach()


def clipped(images: Tensor) -> Tensor:
    """Images whose darkest and brightest levels are one: what lies there has no gradient."""
    return images.clamp(0.02, 0.98)


def median_filtered(images: Tensor) -> Tensor:
    """The middle of each 3 by 3 pixels, whose gradient is that of one pixel: a sound function."""
    padded = nn.functional.pad(images, (1, 1, 1, 1), mode="replicate")
    windows = padded.unfold(2, 3, 1).unfold(3, 3, 1).flatten(-2)
    return windows.median(-1).values


def denoised(images: Tensor) -> Tensor:
    """Images after some steps of an optimisation."""
    with torch.enable_grad():
        moved = images.detach().requires_grad_()
        for _ in range(3):
            loss = ((moved - images) ** 2).sum() + 0.1 * moved.diff().abs().sum()
            (gradient,) = torch.autograd.grad(loss, moved)
            moved = (moved - 0.01 * gradient).detach().requires_grad_()
    return images + (moved - images).detach()


def closed(logits: Tensor) -> Tensor:
    """The same logits with a gradient of zero."""
    return logits.detach() + 0 * logits


def overflowing(logits: Tensor) -> Tensor:
    """Logits of which some are not a number."""
    return torch.where(logits[:, :1] > 0.5, torch.nan, logits)

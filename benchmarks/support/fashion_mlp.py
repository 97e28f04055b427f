"""A small network for Fashion-MNIST, trained on attacked images in about a minute."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from data.images import ImageSpec
from data.sources import load_inputs, open_images
from robustness.attacks.base import Batch

SPEC = ImageSpec(channels=1, height=28, width=28)
_IMAGES, _EPOCHS, _BATCH, _LR = 30_000, 4, 128, 1e-3
_STEPS = 3


def trained(eps: float) -> nn.Module:
    """Two hidden layers of 256, trained by PGD with three steps.

    Source: Madry et al. 2018, "Towards deep learning models resistant to adversarial attacks".
    """
    batch = images("train", _IMAGES)
    inputs, labels = torch.from_numpy(batch.images), torch.from_numpy(batch.labels)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
            nn.Linear(256, 10),
        )  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters(), lr=_LR)
        for _ in range(_EPOCHS):
            for rows in torch.randperm(len(labels)).split(_BATCH):
                moved = _attacked(model, inputs[rows], labels[rows], eps)
                optimizer.zero_grad()
                cross_entropy(model(moved), labels[rows]).backward()
                optimizer.step()
    return model.eval().requires_grad_(False)


def images(split: str, count: int) -> Batch:
    """So many images of a split, drawn once and for all."""
    source = open_images("fashion-mnist", split=split)
    chosen = np.random.default_rng(0).choice(len(source), count, replace=False)
    part = source.take(sorted(chosen.tolist()))
    return Batch(inputs=load_inputs(part, SPEC), labels=np.asarray(part.labels, np.int64))


def _attacked(model: nn.Module, clean: Tensor, labels: Tensor, eps: float) -> Tensor:
    moved = clean + torch.empty_like(clean).uniform_(-eps, eps)
    for _ in range(_STEPS):
        moved = moved.clamp(0, 1).requires_grad_(True)
        [gradient] = torch.autograd.grad(cross_entropy(model(moved), labels), moved)
        moved = (moved + eps / 2 * gradient.sign()).clamp(clean - eps, clean + eps).detach()
    return moved.clamp(0, 1)

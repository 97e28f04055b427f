"""Distillation: a small convolutional teacher, whose logits the transformer learns beside labels.

A transformer without convolutions has to find out from the data alone that neighboring pixels
belong together. A convolutional network knows it by construction, so its soft labels help most
where images are few. The teacher lives in training only.

Source: Hinton et al., "Distilling the Knowledge in a Neural Network", 2015; Touvron et al., DeiT,
2021, eq. 2, who find convolutional teachers the better ones.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.progress import Bar
from models.checkpoints import load_weights, save_weights
from training.augment import flip, move
from training.distributed import Processes
from training.draws import Draws, seed_model, source
from training.order import Order
from training.recipe import Recipe
from training.samples import StoredImages, to_model

_BATCH, _LR, _SHIFT = 128, 4e-3, 2


class ConvTeacher(nn.Sequential):
    """Two stages of 3 x 3 convolutions, a third at a quarter of the size, average pooling.

    Args:
        in_chans: channels of the images, (B, in_chans, H, W) in [0, 1].
        num_classes: number of logits.
    """

    def __init__(self, in_chans: int, num_classes: int) -> None:
        super().__init__(
            *_convolution(in_chans, 32),
            nn.MaxPool2d(2),
            *_convolution(32, 64),
            *_convolution(64, 64),
            nn.MaxPool2d(2),
            *_convolution(64, 128),
            *_convolution(128, 128),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, num_classes),
        )


def teacher_logits(
    path: Path,
    samples: StoredImages,
    recipe: Recipe,
    processes: Processes,
    *,
    progress: bool = False,
) -> Tensor:
    """Train a teacher, or read that of the run, and compute its logits for the training images.

    Args:
        path: the teacher's weights.
        samples: the training split.
        recipe: of the student, whose seed is the teacher's, too.
        processes: each trains the same teacher; the first one writes it.
        progress: show a progress bar.

    Returns:
        (N, K) logits on the CPU.
    """
    seed_model(recipe.seed)
    teacher = ConvTeacher(samples.pixels.shape[1], recipe.model["num_classes"])
    teacher.to(processes.device)
    if path.exists():
        load_weights(teacher, path)
    elif recipe.distillation is not None:
        epochs = recipe.distillation.teacher_epochs
        train_teacher(teacher, samples, epochs=epochs, seed=recipe.seed, progress=progress)
        if processes.is_first:
            save_weights(teacher, path)
    return soft_labels(teacher, samples.pixels)


def train_teacher(
    teacher: nn.Module, samples: StoredImages, *, epochs: int, seed: int, progress: bool = False
) -> None:
    """Train a teacher with flips and shifts under a one-cycle learning rate, in batches of 128."""
    device, labels = next(teacher.parameters()).device, torch.from_numpy(samples.labels)
    order = Order(len(labels), _BATCH, seed=seed)
    steps = epochs * order.steps_per_epoch
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=_LR, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LR, total_steps=steps)
    teacher.train()
    for step in Bar(range(steps), "teacher", unit="step", disable=not progress):
        indices = order.indices(step)
        (images,) = to_model(samples.batch(indices), device)
        draws = Draws(source(seed, "augment", step), _BATCH, device=device)
        images = move(flip(images, draws), _SHIFT, draws)
        loss = F.cross_entropy(teacher(images), labels[indices].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def soft_labels(teacher: nn.Module, pixels: Tensor) -> Tensor:
    """The teacher's logits (N, K), the mean of those for an image and for its mirror image."""
    teacher.eval()
    device = next(teacher.parameters()).device
    batches = (batch.to(device).float() / 255 for batch in pixels.split(500))
    logits = ((teacher(images) + teacher(images.flip(-1))) / 2 for images in batches)
    return torch.cat([batch.cpu() for batch in logits])


def _convolution(in_chans: int, out_chans: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(in_chans, out_chans, 3, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(out_chans), nn.ReLU()

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
from tqdm import tqdm

from models.checkpoints import load_weights, save_weights
from training.augment import flip, move
from training.distributed import Processes
from training.draws import Draws, seed_model, source
from training.order import Order
from training.recipe import Recipe
from training.samples import StoredImages

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
    *,
    epochs: int,
    processes: Processes,
    progress: bool = False,
) -> Tensor:
    """Train a teacher, or read that of the run, and compute its logits for the training images.

    Args:
        path: the teacher's weights.
        samples: the training split.
        recipe: of the student; its seed is that of the teacher's weights, order and augmentation.
        epochs: how long the teacher is trained.
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
    else:
        labels, options = torch.from_numpy(samples.labels), {"epochs": epochs, "progress": progress}
        train_teacher(teacher, samples.pixels, labels, seed=recipe.seed, **options)
        if processes.is_first:
            save_weights(teacher, path)
    return soft_labels(teacher, samples.pixels)


def train_teacher(
    teacher: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    seed: int,
    progress: bool = False,
) -> None:
    """Train a teacher with flips and shifts under a one-cycle learning rate.

    Args:
        teacher: maps (B, C, H, W) in [0, 1] to logits; left in eval mode.
        pixels: (N, C, H, W) uint8, at least one batch of 128.
        labels: (N,) int64.
        epochs: passes over the images.
        seed: of order and augmentation.
        progress: show a progress bar.
    """
    device = next(teacher.parameters()).device
    order = Order(len(labels), _BATCH, seed=seed)
    steps = epochs * order.steps_per_epoch
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=_LR, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LR, total_steps=steps)
    teacher.train()
    for step in tqdm(range(steps), "teacher", unit="step", disable=not progress):
        indices = torch.from_numpy(order.indices(step))
        images = pixels[indices].to(device).float() / 255
        draws = Draws(source(seed, "augment", step), _BATCH, device=device)
        images = move(flip(images, draws), _SHIFT, draws)
        loss = F.cross_entropy(teacher(images), labels[indices].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    teacher.eval()


@torch.no_grad()
def soft_labels(teacher: nn.Module, pixels: Tensor) -> Tensor:
    """The teacher's logits (N, K), the mean of those for an image and for its mirror image."""
    teacher.eval()
    device = next(teacher.parameters()).device
    batches = (batch.to(device).float() / 255 for batch in pixels.split(500))
    logits = ((teacher(images) + teacher(images.flip(-1))) / 2 for images in batches)
    return torch.cat([batch.cpu() for batch in logits])


def distillation_loss(logits: Tensor, teacher_logits: Tensor, *, temperature: float) -> Tensor:
    """KL divergence of the student's prediction from the teacher's, both softened.

    Args:
        logits: (B, K) of the student.
        teacher_logits: (B, K).
        temperature: divides both logits; the square of it keeps the gradient's size.

    Source: Touvron et al. 2021, eq. 2, second term.
    """
    student = F.log_softmax(logits / temperature, dim=1)
    teacher = F.log_softmax(teacher_logits / temperature, dim=1)
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


def _convolution(in_chans: int, out_chans: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(in_chans, out_chans, 3, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(out_chans), nn.ReLU()

"""Steps of training on random images, as CIFAR-10's full size has them."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

import models
from benchmarks.device.setting import Cell, Setting, rate_rows
from benchmarks.device.timing import Call, measure_for, seconds_on
from benchmarks.support.rows import Row


def cells(setting: Setting) -> Iterator[Cell]:
    """Steps per second."""
    case = f"CIFAR-10, DeiT-tiny of 4 x 4 patches, bf16 autocast, batch {setting.trained}, steps"
    yield case, partial(_rows, case, setting)


def _rows(case: str, setting: Setting) -> Iterator[Row]:
    size = {"drop_path": 0.1, **setting.changes} | {
        "img_size": 32,
        "patch_size": 4,
        "num_classes": 10,
    }
    with torch.inference_mode(False):
        first, second = (
            _step(models.build(f"deit_tiny{attention}", **size), setting)
            for attention in ("", "_elliptical")
        )
        pairs = measure_for(first, second, 4 * setting.cell_s, seconds_on(setting.device))
    yield from rate_rows(case, pairs, 1, "steps/s")


def _step(model: nn.Module, setting: Setting) -> Call:
    """A step of training on the same random images."""
    device, count = setting.device, setting.trained
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, 3, 32, 32, generator=generator).to(device)
    labels = torch.randint(0, 10, (count,), generator=generator).to(device)

    def step() -> None:
        """Forward, backward, and along the gradient."""
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step

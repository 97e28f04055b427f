"""Architectures of transformers as ONNX files.

`python -m benchmarks.support.foreign_images NAME IMAGES OUTPUT` builds one from its config,
with random weights; nothing is downloaded. Batch norms and the last layer are fitted to images, so
that classes differ from image to image; one network is trained for less than a minute.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static
from torch import Tensor, nn
from transformers import (
    AutoModelForImageClassification,
    ConvNextConfig,
    MobileNetV2Config,
    ResNetConfig,
    SwinConfig,
    ViTConfig,
)

from benchmarks.support.foreign_data import MEAN, STD
from data.images import ImageSpec
from data.sources import load_pixels, open_images

_ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "resnet-18": lambda: ResNetConfig(
        layer_type="basic", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2]
    ),
    "resnet-50": ResNetConfig,
    "mobilenet-v2": MobileNetV2Config,
    "convnext-tiny": ConvNextConfig,
    "vit-tiny": lambda: ViTConfig(hidden_size=192, num_attention_heads=3, intermediate_size=768),
    "swin-tiny": lambda: SwinConfig(image_size=64, patch_size=2, window_size=4),
}
_FITTED = 64
_TRAINED, _BATCH, _EPOCHS, _RATE = 4000, 64, 2, 1e-3


class Logits(nn.Module):
    """An architecture from `pixel_values` (B, 3, H, W) to logits (B, K) and nothing else."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        """The logits (B, K)."""
        return self.model(pixel_values=pixel_values).logits


class Images(CalibrationDataReader):
    """Images for the scales of int8, eight at a time."""

    def __init__(self, images: Tensor) -> None:
        self._left = list(images.split(8))

    def get_next(self) -> dict[str, np.ndarray]:
        """The next ones, or nothing."""
        return {"pixel_values": self._left.pop().numpy()} if self._left else {}


def main(name: str, images: str, side: str, output: str) -> None:
    """Write `NAME.onnx`, and `NAME-static.onnx` and `NAME-dynamic.onnx` in int8, into a folder.

    Args:
        name: of the architecture; with "+train" it is trained on Fashion-MNIST, with "+int8" also
            quantized.
        images: a parquet file of images.
        side: height and width that it reads.
        output: the folder.
    """
    torch.manual_seed(0)
    torch.set_num_threads(2)
    kind, _, rest = name.partition("+")
    config = _ARCHITECTURES[kind]()
    config.num_labels = 10
    # Others use a kernel whose strides torch.export cannot follow with a free batch.
    model = Logits(AutoModelForImageClassification.from_config(config, attn_implementation="eager"))
    some, _ = _load(images, int(side), _FITTED)
    if "train" in rest:
        _train(model, *_load("fashion-mnist", int(side), _TRAINED, split="train"))
    else:
        _fit(model, some)
    graph = Path(output, f"{kind}.onnx")
    _export(model.eval(), some[:2], graph)
    if "int8" in rest:
        static, dynamic = (graph.with_stem(f"{kind}-{way}") for way in ("static", "dynamic"))
        quantize_static(graph, static, Images(some), per_channel=True)
        quantize_dynamic(_without_shapes(graph), dynamic)


def _without_shapes(path: Path) -> onnx.ModelProto:
    """A graph without the shapes of its values, which `quantize_dynamic` leaves as they were."""
    graph = onnx.load(path)
    del graph.graph.value_info[:]
    return graph


def _load(source: str, side: int, count: int, split: str = "test") -> tuple[Tensor, Tensor]:
    """Normalized images, evenly spread over a set, with their labels."""
    found = open_images(source, split=split)
    found = found.take(np.arange(count) * len(found) // count)
    pixels = load_pixels(found, ImageSpec(channels=3, height=side, width=side))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    labels = np.zeros(count, np.int64) if found.labels is None else found.labels
    return (torch.from_numpy(pixels) / 255 - mean) / std, torch.from_numpy(labels)


def _fit(model: Logits, images: Tensor) -> None:
    """Give batch norms the moments of images, and even their logits out."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None
    with torch.no_grad():
        model.train()(images)
        even_out(model, model.eval()(images))


def even_out(model: nn.Module, logits: Tensor) -> None:
    """Change the last layer so that each of these logits (B, K) gets mean 0 and variance 1."""
    std, mean = torch.std_mean(logits, dim=0)
    last = [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1]
    last.weight /= std[:, None]
    last.bias.sub_(mean).div_(std)


def _train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    steps = _EPOCHS * math.ceil(len(images) / _BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps)
    for _ in range(_EPOCHS):
        for rows in torch.randperm(len(images)).split(_BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model.train()(images[rows]), labels[rows]).backward()
            optimizer.step()
            schedule.step()


def _export(model: nn.Module, images: Tensor, path: Path) -> None:
    torch.onnx.export(
        model,
        (images,),
        path,
        input_names=["pixel_values"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        external_data=False,
        verbose=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

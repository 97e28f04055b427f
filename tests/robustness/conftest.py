"""A linear classifier, whose best l-infinity attack is known exactly, and images for it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from data.images import ImageSpec
from data.sources import ImageSet
from robustness.target import Target

SIZE = 6


class Linear(nn.Module):
    """logits = W x + b on flattened pixels, with a dropout that only training mode shows."""

    def __init__(self, num_classes: int, *, scale: float = 1.0) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        self.dropout = nn.Dropout(0.5)
        self.linear = nn.Linear(SIZE * SIZE, num_classes)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(self.linear.weight.shape, generator=draw) * scale)
            self.linear.bias.copy_(-self.linear.weight.sum(1) / 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(self.dropout(images.flatten(1)))


@dataclass
class MatmulRuntime:
    """The same function in numpy, as a served model would compute it."""

    weight: np.ndarray
    bias: np.ndarray
    name: str = "numpy"
    precision: str = "fp32"

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        return inputs.reshape(len(inputs), -1) @ self.weight.T + self.bias


MakeTarget = Callable[..., Target]
MakeImages = Callable[..., ImageSet]


@pytest.fixture
def make_target() -> MakeTarget:
    def make(num_classes: int = 2, *, scale: float = 1.0, name: str = "linear") -> Target:
        twin = Linear(num_classes, scale=scale).eval()
        runtime = MatmulRuntime(
            twin.linear.weight.detach().numpy().copy(), twin.linear.bias.detach().numpy().copy()
        )
        return Target(
            name=name,
            version="1",
            digest=f"{name}-{num_classes}".ljust(64, "0"),
            labels=[f"class {i}" for i in range(num_classes)],
            image_spec=ImageSpec(channels=1, height=SIZE, width=SIZE),
            runtime=runtime,
            twin=twin,
        )

    return make


@pytest.fixture
def make_images() -> MakeImages:
    def make(count: int = 40, *, num_classes: int | None = 2, seed: int = 0) -> ImageSet:
        """Grey noise far from black and white, so that clipping to [0, 1] never acts."""
        draw = np.random.default_rng(seed)
        pixels = draw.integers(96, 160, (count, SIZE, SIZE), dtype=np.uint8)
        labels = None if num_classes is None else draw.integers(0, num_classes, count)
        return ImageSet(
            names=[f"{i}.png" for i in range(count)],
            labels=labels,
            label_names=None,
            reader=lambda i: Image.fromarray(pixels[i]),
        )

    return make

"""A linear classifier, whose best l-infinity attack is known exactly, and two tiny artifacts."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import models
from data.images import ImageSpec
from data.sources import ImageSet, load_inputs, load_pixels, open_images
from export.run import Run
from export.samples import Samples
from export.write import write_artifact
from models.checkpoints import save_weights
from robustness.target import ImageTarget, Target
from runtimes.base import Inputs
from tests.conftest import Once

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

    def predict(self, inputs: Inputs) -> np.ndarray:
        images = inputs if isinstance(inputs, np.ndarray) else inputs["images"]
        return images.reshape(len(images), -1) @ self.weight.T + self.bias


MakeTarget = Callable[..., Target]
MakeImages = Callable[..., ImageSet]


@pytest.fixture
def make_target() -> MakeTarget:
    def make(num_classes: int = 2, *, scale: float = 1.0, name: str = "linear") -> Target:
        torch_model = Linear(num_classes, scale=scale).eval()
        runtime = MatmulRuntime(
            torch_model.linear.weight.detach().numpy().copy(),
            torch_model.linear.bias.detach().numpy().copy(),
        )
        return ImageTarget(
            name=name,
            version="1",
            digest=f"{name}-{num_classes}".ljust(64, "0"),
            labels=[f"class {i}" for i in range(num_classes)],
            image_spec=ImageSpec(channels=1, height=SIZE, width=SIZE),
            runtime=runtime,
            torch_model=torch_model,
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


@dataclass(frozen=True)
class Artifacts:
    """Folders of two exported vision transformers and of 40 labelled images for them."""

    dot: Path
    elliptical: Path
    images: Path


@pytest.fixture(scope="session")
def artifacts(once: Once) -> Artifacts:
    root = once("attacked", _make_artifacts)
    return Artifacts(dot=root / "dot", elliptical=root / "elliptical", images=root / "images")


def _make_artifacts(root: Path) -> None:
    draw = np.random.default_rng(0)
    for i in range(40):
        label = i % 3
        pixels = draw.integers(60, 100, (8, 8)) + 40 * label
        (root / "images" / f"Class-{label}").mkdir(parents=True, exist_ok=True)
        name = root / "images" / f"Class-{label}" / f"{i:03d}.png"
        Image.fromarray(pixels.astype(np.uint8)).save(name)
    _export("dot", "deit_tiny", root)
    _export("elliptical", "deit_tiny_elliptical", root)


def _export(name: str, architecture: str, root: Path) -> None:
    """Teach a tiny transformer brightness for a moment, and export it."""
    config = models.config(
        architecture, img_size=8, patch_size=4, in_chans=1, num_classes=3, embed_dim=16,
        num_heads=2, depth=3, mlp_ratio=2.0,
    )  # fmt: skip
    labels = ["class 0", "class 1", "class 2"]
    images = open_images(root / "images", label_names=labels)
    spec = ImageSpec(channels=1, height=8, width=8)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = models.build(architecture, **dataclasses.asdict(config))
    _teach(model, images, spec)
    folder = root / f"run-{name}"
    folder.mkdir()
    save_weights(model, folder / "best.safetensors")
    run = Run(
        folder=folder,
        recipe={"name": name, "version": "1", "seed": 0, "data": {"source": "made"}},
        metrics={},
        architecture=architecture,
        config=_as_json(dataclasses.asdict(config)),
        labels=labels,
        spec=spec,
    )
    thousand = images.take([i % len(images) for i in range(1000)])
    samples = Samples(
        pixels=load_pixels(thousand, spec), labels=thousand.labels, description="made"
    )
    write_artifact(run, samples, root / name)


def _teach(model: nn.Module, images: ImageSet, spec: ImageSpec) -> None:
    assert images.labels is not None
    inputs, labels = torch.from_numpy(load_inputs(images, spec)), torch.from_numpy(images.labels)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(40):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()


def _as_json(config: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(config))

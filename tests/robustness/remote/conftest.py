"""A small classifier behind a socket, and images that it classifies correctly."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import Once
from tests.robustness.conftest import Rowwise
from tests.robustness.remote.endpoint import Endpoint, listening


@pytest.fixture(scope="module")
def module() -> torch.nn.Module:
    return Rowwise().eval()


@pytest.fixture(scope="module")
def images(once: Once, module: torch.nn.Module) -> Path:
    """Forty noisy images in folders of the class that the model sees in them."""

    def fill(folder: Path) -> None:
        draw = np.random.default_rng(0)
        for index in range(40):
            pixels = draw.integers(0, 256, (8, 8), dtype=np.uint8)
            with torch.no_grad():
                label = int(module(torch.from_numpy(pixels[None, None] / np.float32(255))).argmax())
            (folder / str(label)).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(folder / str(label) / f"{index:02d}.png")

    return once("remote-images", fill)


@pytest.fixture
def endpoint(module: torch.nn.Module) -> Iterator[Endpoint]:
    def answers(inputs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return module(torch.from_numpy(inputs.copy())).numpy()

    with listening(Endpoint(answers=answers, shape=[-1, 1, 8, 8])) as running:
        yield running

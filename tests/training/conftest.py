import struct
from pathlib import Path

import numpy as np
import pytest
import yaml

RECIPE = {
    "name": "tiny",
    "labels": ["dark", "light"],
    "model": {
        "name": "deit_tiny_elliptical", "img_size": 8, "patch_size": 4, "in_chans": 1,
        "num_classes": 2, "embed_dim": 16, "num_heads": 2, "depth": 2, "mlp_ratio": 2.0,
    },
    "data": {
        "valid": 32, "image": {"channels": 1, "height": 8, "width": 8}, "flip": True, "shift": 1,
    },
    "train": {"epochs": 3, "batch_size": 16, "lr": 3.0e-3, "warmup_epochs": 0.5},
}  # fmt: skip


def _write(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.tobytes())


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    """A recipe for telling dark images from light ones, beside its data."""
    random = np.random.default_rng(0)
    for split, size in (("train", 160), ("t10k", 64)):
        labels = random.integers(0, 2, size).astype(np.uint8)
        pixels = random.integers(0, 150, (size, 8, 8)) + 100 * labels[:, None, None]
        _write(tmp_path / f"{split}-images-idx3-ubyte", pixels.astype(np.uint8))
        _write(tmp_path / f"{split}-labels-idx1-ubyte", labels)
    recipe = RECIPE | {"data": RECIPE["data"] | {"source": str(tmp_path)}}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path

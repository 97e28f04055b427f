from pathlib import Path

import pytest
import torch

import models
from models.checkpoints import load_weights, save_weights

SMALL = {"img_size": 16, "depth": 1, "num_classes": 3, "embed_dim": 12}


def test_weights_survive_a_round_trip(tmp_path: Path) -> None:
    first, second = (models.build("deit_tiny", **SMALL) for _ in range(2))
    save_weights(first, tmp_path / "w.safetensors")
    load_weights(second, tmp_path / "w.safetensors")
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key])
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    save_weights(models.build("deit_tiny", **SMALL), tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match="w.safetensors does not fit the model"):
        load_weights(models.build("deit_tiny", **SMALL | {"depth": 2}), tmp_path / "w.safetensors")


def test_broken_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        load_weights(models.build("deit_tiny", **SMALL), tmp_path / "w.safetensors")

import pytest
import torch

import models
from models.layers.block import DropPath, drop_path_rate

DEIT = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "num_heads": 2, "num_classes": 3}


def test_drop_path_leaves_out_whole_samples_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    layer = DropPath(0.25)
    x = torch.ones(4000, 2, 3)
    dropped = layer.train()(x)
    assert dropped.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (dropped.amin((1, 2)) == dropped.amax((1, 2))).all()
    assert dropped.mean() == pytest.approx(1, abs=0.03)
    assert layer.eval()(x) is x


def test_rate_grows_from_the_first_block_to_the_last() -> None:
    assert [drop_path_rate(0.3, layer, 4) for layer in range(1, 5)] == pytest.approx(
        [0, 0.1, 0.2, 0.3]
    )
    assert drop_path_rate(0.3, 1, 1) == 0


@pytest.mark.parametrize("name", ["deit_tiny_elliptical", "fan_tiny"])
def test_model_drops_paths_in_training_alone(name: str) -> None:
    torch.manual_seed(0)
    model = models.build(name, **DEIT, depth=3, drop_path=0.9)
    images = torch.rand(1, 3, 8, 8).expand(32, -1, -1, -1)
    assert len(model.train()(images).round(decimals=4).unique(dim=0)) > 1
    assert (model.eval()(images) - model(images[:1])).abs().max() < 1e-5
    plain = models.build(name, **DEIT, depth=3)
    assert plain.state_dict().keys() == model.state_dict().keys()
    with pytest.raises(ValueError, match=r"drop_path must lie in \[0, 1\), got 1"):
        models.config(name, **DEIT, drop_path=1)

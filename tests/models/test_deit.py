import pytest
import torch
from torch.nn import functional as F

import models
from models.deit import DeiT
from models.layers.block import DropPath, drop_path_rate
from tests.models import plain_transformer as plain

SMALL = {"img_size": 28, "patch_size": 7, "in_chans": 1, "num_classes": 10, "embed_dim": 32}
SMALL |= {"num_heads": 2, "depth": 3, "mlp_ratio": 2.0}
NAMES = ["deit_tiny", "deit_tiny_elliptical"]


@pytest.mark.parametrize(
    ("name", "parameters", "distilled"),
    [
        ("deit_tiny", 5_717_416, 5_910_800),
        ("deit_small", 22_050_664, 22_436_432),
        ("deit_base", 86_567_656, 87_338_192),
    ],
)
def test_parameter_count_is_the_published_one(name: str, parameters: int, distilled: int) -> None:
    with torch.device("meta"):
        plain_model, elliptical = models.build(name), models.build(f"{name}_elliptical")
        with_token = models.build(name, distilled=True)
    counts = [sum(p.numel() for p in m.parameters()) for m in (plain_model, elliptical, with_token)]
    assert counts == [parameters, parameters, distilled]
    added = {"dist_token", "head_dist.weight", "head_dist.bias"}
    assert set(with_token.state_dict()) - set(plain_model.state_dict()) == added


def test_both_attentions_share_names_and_shapes_and_those_of_public_checkpoints() -> None:
    dot, elliptical = (models.build(name, **SMALL) for name in NAMES)
    elliptical.load_state_dict(dot.state_dict())
    dot.load_state_dict(elliptical.state_dict())
    public = {"cls_token", "pos_embed", "patch_embed.proj.weight", "norm.bias", "head.weight"}
    block = {"norm1.weight", "attn.qkv.bias", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.bias"}
    assert public | {f"blocks.0.{key}" for key in block} <= set(dot.state_dict())
    assert not {"mean", "std"} & set(dot.state_dict())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("distilled", [False, True])
def test_forward_is_the_published_one(name: str, distilled: bool) -> None:
    torch.manual_seed(0)
    model = models.build(name, **SMALL, distilled=distilled).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    w = model.state_dict()
    images = torch.rand(2, 1, 28, 28, dtype=torch.float64)
    patches = F.unfold((images - 0.5) / 0.5, 7, stride=7).transpose(1, 2)
    for image, logits in zip(patches, model(images), strict=True):
        x = image @ w["patch_embed.proj.weight"].flatten(1).T + w["patch_embed.proj.bias"]
        prefix = [w[key][0] for key in ("cls_token", "dist_token") if key in w]
        x, v = torch.cat([*prefix, x]) + w["pos_embed"][0], None
        for i in range(3):
            x, v = plain.pre_norm_block(
                x, w, f"blocks.{i}", 2, v if name.endswith("elliptical") else None
            )
        x = plain.norm(x, w, "norm")
        expected = plain.linear(x[0], w, "head")
        if distilled:
            expected = (expected + plain.linear(x[1], w, "head_dist")) / 2
        assert (logits - expected).abs().max() < 1e-10


def test_heads_are_given_apart_for_training() -> None:
    torch.manual_seed(0)
    model = models.build("deit_tiny", **SMALL, distilled=True)
    ordinary = models.build("deit_tiny", **SMALL)
    assert isinstance(model, DeiT) and isinstance(ordinary, DeiT)
    images = torch.rand(2, 1, 28, 28)
    logits, distilled = model.heads(images)
    assert logits.shape == distilled.shape == (2, 10)
    assert (logits - distilled).abs().max() > 0
    assert torch.equal(model(images), (logits + distilled) / 2)
    (only,) = ordinary.heads(images)
    assert torch.equal(ordinary(images), only)


@pytest.mark.parametrize(("img_size", "patch_size"), [(12, 1), (15, 5), (32, 16), (6, 6)])
def test_any_image_and_patch_size(img_size: int, patch_size: int) -> None:
    sizes = SMALL | {"img_size": img_size, "patch_size": patch_size, "in_chans": 2}
    model = models.build("deit_tiny_elliptical", **sizes, distilled=True)
    assert model(torch.rand(2, 2, img_size, img_size)).shape == (2, 10)


PATHS = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "num_heads": 2, "num_classes": 3}


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
    model = models.build(name, **PATHS, depth=3, drop_path=0.9)
    images = torch.rand(1, 3, 8, 8).expand(32, -1, -1, -1)
    assert len(model.train()(images).round(decimals=4).unique(dim=0)) > 1
    assert (model.eval()(images) - model(images[:1])).abs().max() < 1e-5
    plain = models.build(name, **PATHS, depth=3)
    assert plain.state_dict().keys() == model.state_dict().keys()
    with pytest.raises(ValueError, match=r"drop_path must lie in \[0, 1\), got 1"):
        models.config(name, **PATHS, drop_path=1)

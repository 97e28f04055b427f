import pytest
import torch

from models.fan import FAN, from_public
from models.layers.block import DropPath
from tests.models import plain_fan as plain
from tests.models.small import draw, small

NAMES = ["fan_tiny", "fan_tiny_elliptical"]


def public(name: str = "fan_tiny", **overrides: object) -> tuple[FAN, plain.Weights]:
    """A small model and its weights by their public names, every one far from its initial value."""
    model = small(name, **overrides)
    weights = plain.public_weights(model.config)
    model.load_state_dict(from_public(weights))
    return model, weights


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "sizes",
    [
        {"in_chans": 1},
        {"in_chans": 3, "num_heads": 4, "depth": 3, "img_size": 8},
        {"in_chans": 2, "patch_size": 8, "img_size": 24, "depth": 1},
        {"patch_size": 2, "img_size": 6, "mlp_ratio": 1.5},
        {"patch_size": 16, "img_size": 32, "embed_dim": 8},
        {"patch_size": 32, "img_size": 64},
    ],
)
def test_public_weights_give_the_published_forward(name: str, sizes: dict[str, int]) -> None:
    model, weights = public(name, **sizes)
    side = model.config.img_size
    x = draw(2, model.config.in_chans, side, side).sigmoid()
    expected = torch.stack([plain.plain_fan(image, weights, model.config) for image in x])
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        error = (model.to(dtype)(x.to(dtype)) - expected).abs().max()
        assert error <= tolerance * max(1.0, float(expected.abs().max()))


def test_every_block_but_those_of_the_class_is_left_out_as_often() -> None:
    model, _ = public(depth=3, drop_path=0.25)
    rates = [part.rate for part in model.blocks.modules() if isinstance(part, DropPath)]
    assert rates == [0.25] * 3
    assert not any(isinstance(part, DropPath) for part in model.cls_attn_blocks.modules())


def test_translation_changes_neither_its_argument_nor_weights_of_our_own() -> None:
    model, weights = public()
    state, before = model.state_dict(), {key: tensor.clone() for key, tensor in weights.items()}
    found = from_public(weights | {"blocks.0.attn.k.bias": torch.zeros(16)})
    assert "cls_attn_blocks.0.attn.k.bias" in weights
    assert [key for key in found if key.endswith("k.bias")] == ["blocks.0.attn.k.bias"]
    for given, expected in ((weights, before), (from_public(state), state)):
        assert given.keys() == expected.keys()
        assert all(torch.equal(given[key], expected[key]) for key in expected)


def test_broken_public_weights_are_refused() -> None:
    weights = public()[1]
    lacking = {key: tensor for key, tensor in weights.items() if key != "blocks.1.attn.q.weight"}
    with pytest.raises(ValueError, match="state must have 'blocks.1.attn.q.weight'"):
        from_public(lacking)
    with pytest.raises(ValueError, match="state must hold tensors that fit each other"):
        from_public(weights | {"blocks.0.norm1.bias": torch.zeros(15).double()})
    with pytest.raises(ValueError, match=r"blocks.1.attn.k.bias must be \(16,\), got \(3,\)"):
        from_public(weights | {"cls_attn_blocks.1.attn.k.bias": torch.zeros(3)})
    weights["blocks.0.mlp.mlp_v.dwconv.bn.weight"][3] = 0
    with pytest.raises(ValueError, match="blocks.0.mlp.mlp_v.dwconv.bn.weight must have no 0"):
        from_public(weights)

import pytest
import torch
from torch import Tensor

import models
from models.fan import FAN, FANBlock, from_public
from models.layers.block import DropPath
from tests.models import plain_fan as plain

SMALL = {"img_size": 16, "patch_size": 4, "in_chans": 1, "num_classes": 5, "embed_dim": 16}
SMALL |= {"num_heads": 2, "depth": 2, "mlp_ratio": 2.0}
NAMES = ["fan_tiny", "fan_tiny_elliptical"]


def small(name: str = "fan_tiny", **overrides: object) -> tuple[FAN, plain.Weights]:
    """A small model and its weights by their public names, every one far from its initial value."""
    model = models.build(name, **SMALL | overrides)
    assert isinstance(model, FAN)
    weights = plain.public_weights(model.config)
    model.double().load_state_dict(from_public(weights))
    return model.eval(), weights


def images(count: int, side: int = 16, channels: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, channels, side, side, generator=generator, dtype=torch.float64)


def blocks(model: FAN) -> list[FANBlock]:
    return [block for block in model.blocks if isinstance(block, FANBlock)]


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
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_public_weights_give_the_published_forward(
    name: str, sizes: dict[str, int], dtype: torch.dtype, tolerance: float
) -> None:
    model, weights = small(name, **sizes)
    x = images(2, model.config.img_size, model.config.in_chans)
    expected = torch.stack([plain.plain_fan(image, weights, model.config) for image in x])
    error = (model.to(dtype)(x.to(dtype)) - expected).abs().max()
    assert error <= tolerance * max(1.0, float(expected.abs().max()))


def test_elliptical_attention_mixes_tokens_otherwise_from_the_second_block_on() -> None:
    dot, elliptical = (small(name, depth=3)[0] for name in NAMES)
    found = [[block.attn.elliptical for block in blocks(model)] for model in (dot, elliptical)]
    assert found == [[False] * 3, [False, True, True]]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 16, 16, generator=generator, dtype=torch.float64)
    v_prev = torch.ones(2, 2, 16, 8).double()
    for layer, (ours, theirs) in enumerate(zip(blocks(dot), blocks(elliptical), strict=True), 1):
        assert torch.equal(ours(x)[0], theirs(x)[0])
        assert torch.equal(ours.mlp(x), theirs.mlp(x))
        assert torch.equal(ours(x, v_prev)[0], theirs(x, v_prev)[0]) == (layer == 1)
    for ours, theirs in zip(dot.cls_attn_blocks, elliptical.cls_attn_blocks, strict=True):
        assert torch.equal(ours(x), theirs(x))
    seen = []
    for block in blocks(elliptical):
        block.register_forward_hook(lambda _, args, out: seen.append((args[1], out[1])))
    elliptical(images(2))
    assert seen[0][0] is None
    assert seen[1][0] is seen[0][1] and seen[2][0] is seen[1][1]  # values of the block before


def test_every_block_but_those_of_the_class_is_left_out_as_often() -> None:
    model, _ = small(depth=3, drop_path=0.25)
    assert [block.drop_path.rate for block in blocks(model)] == [0.25] * 3
    assert not any(isinstance(part, DropPath) for part in model.cls_attn_blocks.modules())


def test_translation_changes_neither_its_argument_nor_weights_of_our_own() -> None:
    model, weights = small()
    state, before = model.state_dict(), {key: tensor.clone() for key, tensor in weights.items()}
    found = from_public(weights | {"blocks.0.attn.k.bias": torch.zeros(16)})
    assert "cls_attn_blocks.0.attn.k.bias" in weights
    assert [key for key in found if key.endswith("k.bias")] == ["blocks.0.attn.k.bias"]
    for given, expected in ((weights, before), (from_public(state), state)):
        assert given.keys() == expected.keys()
        assert all(torch.equal(given[key], expected[key]) for key in expected)


def test_broken_public_weights_are_refused() -> None:
    weights = small()[1]
    lacking = {key: tensor for key, tensor in weights.items() if key != "blocks.1.attn.q.weight"}
    with pytest.raises(ValueError, match="state must have 'blocks.1.attn.q.weight'"):
        from_public(lacking)
    with pytest.raises(ValueError, match="state must hold tensors that fit each other"):
        from_public(weights | {"blocks.0.norm1.bias": torch.zeros(15).double()})
    with pytest.raises(
        ValueError, match=r"cls_attn_blocks.1.attn.k.bias must be \(16,\), got \(3,\)"
    ):
        from_public(weights | {"cls_attn_blocks.1.attn.k.bias": torch.zeros(3)})
    weights["blocks.0.mlp.mlp_v.dwconv.bn.weight"][3] = 0
    with pytest.raises(ValueError, match="blocks.0.mlp.mlp_v.dwconv.bn.weight must have no 0"):
        from_public(weights)

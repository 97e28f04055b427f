from typing import Any

import pytest
import torch
from torch import Tensor, nn

import models
from models.attention.elliptical import Attention
from models.sequence import SequenceConfig
from tests.models import plain_transformer as plain

NAMES = ["lra_transformer", "lra_transformer_elliptical"]
SMALL = {"vocab_size": 11, "seq_len": 9, "embed_dim": 16, "num_heads": 2, "num_classes": 3}


def small(name: str, **overrides: Any) -> nn.Module:
    """A small model whose weights are large enough for every part to matter."""
    torch.manual_seed(0)
    model = models.build(name, **SMALL | overrides).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


@torch.no_grad()
def plain_logits(model: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    """The forward pass in float64, one sequence at a time, its padding left out."""
    w = {key: value.double() for key, value in model.double().state_dict().items()}
    config: SequenceConfig = model.config
    logits = []
    for row, real in zip(tokens, mask, strict=True):
        x = w["token_embed.weight"][row[real]] + w["pos_embed"][0, : len(row)][real]
        if config.pooling == "cls":
            x = torch.cat([w["cls_token"][0], x])
        v = None
        for i in range(config.depth):
            previous = v if config.elliptical and i == config.depth - 1 else None
            x, v = plain.pre_norm_block(x, w, f"blocks.{i}", 2, previous)
        x = plain.pool(plain.norm(x, w, "norm"), config.pooling)
        hidden = plain.linear(x, w, "head.0")
        logits.append(plain.linear(hidden * (hidden > 0), w, "head.2"))
    return torch.stack(logits)


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize("name", NAMES)
def test_forward_is_the_formula(name: str, pooling: str, depth: int) -> None:
    model, (tokens, mask) = small(name, pooling=pooling, depth=depth), plain.batch()
    for given in (mask, None):
        real = torch.ones_like(mask) if given is None else given
        with torch.no_grad():
            single = model.float()(tokens, given)
            expected = plain_logits(model, tokens, real)
            assert (model(tokens, given) - expected).abs().max() <= 1e-10
        assert (single - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))


def test_default_sizes_are_those_of_the_lra_transformer() -> None:
    for name in NAMES:
        model: Any = models.build(name)
        shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
        assert shapes["token_embed.weight"] == (256, 64)
        assert shapes["pos_embed"] == (1, 4096, 64)
        assert shapes["head.0.weight"] == (128, 64) and shapes["head.2.weight"] == (2, 128)
        assert shapes["blocks.1.mlp.fc1.weight"] == (128, 64)
        assert [block.attn.num_heads for block in model.blocks] == [2, 2]
        layer = 2 * 2 * 64 + 4 * 64 * 64 + 4 * 64 + 2 * 64 * 128 + 128 + 64
        outside = 256 * 64 + 4096 * 64 + 2 * 64 + 64 * 128 + 128 + 2 * 128 + 2
        assert sum(p.numel() for p in model.parameters()) == 2 * layer + outside


@pytest.mark.parametrize("overrides", [{}, {"pooling": "cls"}, {"towers": 2}])
def test_both_attentions_share_names_and_shapes_but_not_the_function(
    overrides: dict[str, Any],
) -> None:
    dot, elliptical = (small(name, **overrides) for name in NAMES)
    elliptical.load_state_dict(dot.state_dict())
    dot.load_state_dict(elliptical.state_dict())
    tokens, mask = plain.batch()
    if overrides.get("towers"):
        tokens, mask = tokens[:4].view(2, 2, 6), mask[:4].view(2, 2, 6)
    assert (dot(tokens, mask) - elliptical(tokens, mask)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, [False, True]),
        ({"depth": 4}, [False, False, False, True]),
        ({"depth": 1}, [False]),
        ({"depth": 4, "elliptical_layers": [2, 3]}, [False, True, True, False]),
        ({"elliptical": False}, [False, False]),
    ],
)
def test_last_layer_alone_is_elliptical_unless_others_are_named(
    overrides: dict[str, Any], expected: list[bool]
) -> None:
    model = models.build("lra_transformer_elliptical", **SMALL | overrides)
    found = [layer.elliptical for layer in model.modules() if isinstance(layer, Attention)]
    assert found == expected

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import models
from models.analysis.diagnostics import diagnose
from models.attention.base import layers_of
from models.checkpoints import load_public
from models.rvt import RVT, RVTBlock, from_public
from tests.models import plain_rvt as plain
from tests.models.small import draw, small


def public(name: str = "rvt_tiny", **overrides: object) -> tuple[RVT, plain.Weights]:
    """A small model and its weights by their public names, every one far from its initial value."""
    model = small(name, **overrides)
    weights = plain.public_weights(model.config)
    model.load_state_dict(from_public(weights))
    return model, weights


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("rvt_tiny", {"depth": 3, "scaled_layers": 2}),
        ("rvt_tiny", {"img_size": 8, "patch_size": 8, "pooled_layers": 0, "in_chans": 1}),
        ("rvt_tiny_elliptical", {"depth": 5, "scaled_layers": 2, "pooled_layers": 2}),
        ("rvt_tiny_elliptical", {"pooled_layers": 0, "scaled_layers": 2, "mlp_ratio": 1.5}),
    ],
)
def test_public_weights_give_the_published_forward(name: str, sizes: dict[str, Any]) -> None:
    model, weights = public(name, **sizes)
    config = model.config
    x = draw(2, config.in_chans, config.img_size, config.img_size).sigmoid()
    expected = torch.stack([plain.plain_rvt(image, weights, config) for image in x])
    assert (model(x) - expected).abs().max() <= 1e-10 * expected.abs().max().clamp_min(1.0)


def test_a_block_is_its_formulas() -> None:
    model, weights = public("rvt_tiny_elliptical", depth=3, scaled_layers=2)
    block = model.get_submodule("transformers.0.blocks.1")
    assert isinstance(block, RVTBlock)
    x, v_prev = draw(1, 9, 16), draw(1, 2, 9, 8, seed=1)
    found, v = block(x, v_prev)
    before = v_prev[0].transpose(0, 1).flatten(1)
    expected, values = plain.plain_block(x[0], weights, "transformers.0.blocks.1", 2, before)
    assert (found[0] - expected).abs().max() < 1e-10 * expected.abs().max().clamp_min(1.0)
    assert (v[0].transpose(0, 1).flatten(1) - values).abs().max() < 1e-10


def test_public_files_are_read_and_broken_ones_refused(tmp_path: Path) -> None:
    model, weights = public()
    x = draw(2, 3, 12, 12).sigmoid()
    expected = model(x)
    save_file(weights, tmp_path / "rvt.safetensors")
    read = small("rvt_tiny")
    load_public(read, tmp_path / "rvt.safetensors")
    assert (read(x) - expected).abs().max() < 1e-10
    del weights["transformers.0.blocks.0.mlp.bn2.running_mean"]
    with pytest.raises(ValueError, match="bn2.running_mean of the shape of .*dwconv.bias"):
        from_public(weights)


@pytest.mark.parametrize(
    ("name", "parameters", "heads", "scaled"),
    [
        # RVT-Ti* and RVT-S* of the paper: 10.9 M and 23.3 M, of the public code 10,951,336 and
        # 23,300,872 with the biases before batch norms.
        ("rvt_tiny", 10_927_112, [6] * 10 + [12] * 2, 10),
        ("rvt_small", 23_259_368, [6] * 12, 5),
    ],
)
def test_sizes_are_the_published_ones(
    name: str, parameters: int, heads: list[int], scaled: int
) -> None:
    for suffix in ("", "_elliptical"):
        with torch.device("meta"):
            model = models.build(name + suffix)
        counts = {key: each.numel() for key, each in model.named_parameters()}
        assert sum(counts.values()) == parameters
        assert [layer.num_heads for layer in layers_of(model)] == heads
        factors = [count for key, count in counts.items() if key.endswith("att_mask")]
        assert factors == [6 * 196**2] * scaled


def test_elliptical_layers_begin_anew_behind_the_pooling() -> None:
    model = small("rvt_tiny_elliptical", depth=5, pooled_layers=2, scaled_layers=3)
    assert [layer.reads_values for layer in layers_of(model)] == [False, True, True, False, True]
    lengths = [layer.length for layer in layers_of(model) if hasattr(layer, "length")]
    assert lengths == [9, 9, 9]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"patch_size": 2}, "patch_size must be a multiple of 4, .* got 2"),
        ({"pooled_layers": 12}, r"pooled_layers must lie in 0\.\.11, got 12"),
        ({"scaled_layers": 11}, r"scaled_layers must lie in 0\.\.10, got 11"),
        ({"attention": "mom"}, "attention must be one of dot, elliptical in layers .* got 'mom'"),
        ({"attention": "elliptical", "estimator": "consistent"}, "difference or random .* scaled"),
        ({"attention": "elliptical", "attention_layers": (11,)}, "must leave out 11, .* pooling"),
    ],
)
def test_configs_against_the_rules_are_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.build("rvt_tiny", **{"img_size": 32} | overrides)


@pytest.mark.parametrize("attention", ["mom", "synthesizer"])
def test_other_mechanisms_stand_where_nothing_is_scaled(attention: str) -> None:
    model = small("rvt_tiny", depth=3, attention=attention, attention_layers=(2, 3))
    assert model(draw(2, 3, 12, 12).sigmoid()).isfinite().all()
    if attention == "synthesizer":
        assert [layer.length for layer in layers_of(model)] == [9, 9, 4]


def test_a_grid_of_another_size_is_refused() -> None:
    layer = layers_of(small("rvt_tiny"))[0]
    for count, message in ((10, "at most 9 tokens, got 10"), (4, "needs 9 tokens, got 4")):
        with pytest.raises(ValueError, match=message):
            layer(draw(1, count, 16))


def test_rollout_shares_what_pooled_tokens_get_among_those_they_came_from() -> None:
    found = diagnose(small("rvt_tiny"), draw(2, 3, 12, 12).sigmoid())
    assert found.rollout is not None and found.rollout.shape == (2, 3, 3)
    assert (found.rollout.sum((1, 2)) - 1).abs().max() < 1e-12

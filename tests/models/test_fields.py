import dataclasses
import math

import pytest

import models
from models.deit import DeiTConfig
from models.fan import FANConfig


@pytest.mark.parametrize("name", models.names())
def test_every_field_of_every_model_refuses_another_type(name: str) -> None:
    for field in dataclasses.fields(models.config(name)):
        for value in ("x", [] if field.name == "attention_options" else {}, [[1]]):
            with pytest.raises(ValueError, match=rf"^{field.name}.* must be "):
                models.config(name, **{field.name: value})


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("deit_tiny", {"embed_dim": 10, "num_heads": 4}, "multiple of num_heads, got 10 and 4"),
        ("deit_tiny", {"img_size": 30, "patch_size": 4}, "multiple of patch_size, got 30 and 4"),
        ("deit_tiny", {"elliptical": 1}, "elliptical must be true or false, got 1"),
        ("deit_tiny", {"std": (0.2, math.nan, 0.2)}, r"std\[1\] must be a finite number, got nan"),
        ("deit_tiny", {"attention_layers": [2.0]}, r"attention_layers\[0\] must be an integer"),
        ("deit_tiny", {"depth": 0}, "depth must be at least 1, got 0"),
        ("deit_tiny", {"num_heads": 0}, "num_heads must be at least 1, got 0"),
        ("deit_tiny_elliptical", {"scaling": "most"}, "scaling must be one of .*, got 'most'"),
        ("deit_tiny_elliptical", {"estimator": "best"}, "estimator must be one of .*, got 'best'"),
        ("deit_tiny", {"drop_path": 1}, r"drop_path must lie in \[0, 1\), got 1"),
        ("deit_tiny_elliptical", {"delta": 0.0}, "delta must be positive, got 0.0"),
        ("deit_tiny_elliptical", {"metric_seed": -1}, "metric_seed must lie in 0..4.*, got -1"),
        ("deit_tiny", {"attention": "eliptical"}, "known mechanism, .* mean 'elliptical'"),
        ("deit_tiny", {"attention": "elliptical", "sclaing": "max"}, "did you mean 'scaling'"),
        ("deit_tiny", {"attention_options": {"x": 1}}, "'x' is no option of the attention 'dot'"),
        ("deit_tiny", {"delta": 2.0}, "'delta' is an option of elliptical, not of .* 'dot'"),
        ("deit_tiny", {"attention": "dot", "elliptical": True}, "must agree with elliptical=True"),
        (
            "transformer",
            {"attention": "elliptical", "attention_layers": (1,)},
            "lie in 2..6, got 1",
        ),
        ("deit_tiny", {"in_chans": 1, "mean": (0.1, 0.2)}, "mean must have one value per channel"),
        ("deit_tiny", {"std": (0.0, 1.0, 1.0)}, "std must be positive"),
        ("deit_tiny", {"num_clases": 10}, "did you mean 'num_classes'"),
        ("deit_tiny_eliptical", {}, "did you mean 'deit_tiny_elliptical'"),
        (
            "deit_tiny_elliptical",
            {"elliptical_layers": (1,)},
            r"attention_layers must lie in 2\.\.12, got 1",
        ),
        ("deit_tiny", {"attention_layers": (2, 14)}, r"must lie in 1\.\.12, got 14"),
        ("segmenter_tiny", {"img_size": 30}, "multiple of patch_size, got 30 and 16"),
        ("segmenter_tiny", {"decoder_depth": 0}, "decoder_depth must be at least 1, got 0"),
        ("segmenter_tiny", {"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ("fan_tiny", {"patch_size": 1}, "patch_size must be a power of two from 2 on, .* got 1"),
        ("fan_tiny", {"patch_size": 12, "img_size": 24}, "patch_size must be a power of two"),
        ("fan_tiny", {"patch_size": 0}, "patch_size must be at least 1, got 0"),
        ("fan_tiny", {"embed_dim": 4}, "embed_dim must be at least 8 for patch_size 16, got 4"),
        ("fan_tiny", {"embed_dim": 10}, "embed_dim must be a multiple of num_heads, got 10 and 4"),
        ("fan_tiny", {"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ("fan_tiny", {"in_chans": 0}, "in_chans must be at least 1, got 0"),
        ("lra_transformer", {"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
        ("lra_transformer", {"seq_len": 0}, "seq_len must be at least 1, got 0"),
        ("lra_transformer", {"mlp_ratio": 1e-3}, "hidden_dim must be at least 1, got 0"),
        ("lra_transformer", {"pooling": "sum"}, "one of mean, max, cls, got 'sum'"),
        ("lra_transformer", {"towers": 3}, "towers must be 1 or 2, got 3"),
        ("lra_transformer", {"dropout": -0.1}, r"dropout must lie in \[0, 1\), got -0.1"),
        ("transformer", {"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ("transformer", {"embed_dim": 9, "num_heads": 3}, "must be a multiple of 2 .* got 9"),
        ("transformer", {"variant": "postnorm"}, "variant must be one of plain, .* got 'post"),
        ("transformer", {"pooling": "cls"}, "pooling must be one of mean, max, got 'cls'"),
        ("transject", {"embed_dim": 10}, "embed_dim must be a positive multiple of 4, got 10"),
        ("transject", {"towers": 3}, "towers must be 1 or 2, got 3"),
        ("transformer", {"towers": 0}, "towers must be 1 or 2, got 0"),
        ("transject", {"num_experts": 0}, "num_experts must be at least 1, got 0"),
        ("transject", {"pooling": "cls"}, "pooling must be one of mean, max, got 'cls'"),
        ("transject", {"num_heads": 2}, "'num_heads' is .* config field of transject"),
    ],
)
def test_values_against_the_rules_are_refused(
    name: str, overrides: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        models.config(name, **overrides)


def test_lists_become_tuples_and_integers_floats() -> None:
    config = models.config(
        "fan_tiny", mlp_ratio=3, attention_layers=[2, 3], in_chans=1, mean=[0], std=[1]
    )
    assert isinstance(config, FANConfig)
    assert config.attention_layers == (2, 3) and config.mean == (0.0,) and config.std == (1.0,)
    assert [type(value) for value in (config.mlp_ratio, *config.mean, *config.std)] == [float] * 3


@pytest.mark.parametrize("name", [3, None, ["deit_tiny"], {}])
def test_a_name_that_is_no_text_is_refused(name: object) -> None:
    with pytest.raises(
        ValueError, match="name must be a known model, got .*; (known: deit_tiny|did you mean)"
    ):
        models.build(name)  # pyright: ignore[reportArgumentType] - what JSON may hold


def test_configs_from_before_there_were_other_attentions_are_read() -> None:
    stored = {"elliptical_layers": [3], "scaling": "mean", "estimator": "difference", "delta": 1.0}
    stored |= {"metric_gradient": False, "metric_seed": None}
    dot = models.config("deit_tiny_elliptical", elliptical=False, **stored)
    assert dot == models.config("deit_tiny")
    for name in ("deit_tiny", "deit_tiny_elliptical"):
        config = models.config(name, elliptical=True, **stored)
        assert config == models.config(name, **dataclasses.asdict(config))
        assert config == models.config(
            "deit_tiny", attention="elliptical", attention_layers=(3,), scaling="mean"
        )


def test_options_are_stored_complete_and_belong_to_their_attention() -> None:
    config = models.config("deit_tiny", attention="elliptical", attention_options={"delta": 2})
    assert isinstance(config, DeiTConfig)
    assert config.attention_options["delta"] == 2.0 and len(config.attention_options) == 6
    again = models.config("lra_transformer_elliptical", attention="dot")
    assert again == models.config("lra_transformer")

import dataclasses
import math

import pytest

import models
from models.fan import FANConfig


@pytest.mark.parametrize("name", models.names())
def test_every_field_of_every_model_refuses_another_type(name: str) -> None:
    for field in dataclasses.fields(models.config(name)):
        for value in ("x", {}, [[1]]):
            with pytest.raises(ValueError, match=rf"^{field.name}.* must be "):
                models.config(name, **{field.name: value})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"elliptical": "false"}, "elliptical must be true or false, got 'false'"),
        ({"elliptical": 1}, "elliptical must be true or false, got 1"),
        ({"depth": 2.0}, "depth must be an integer, got 2.0"),
        ({"depth": True}, "depth must be an integer, got True"),
        ({"img_size": "32"}, "img_size must be an integer, got '32'"),
        ({"in_chans": "3"}, "in_chans must be an integer, got '3'"),
        ({"std": (0.2, math.nan, 0.2)}, r"std\[1\] must be a finite number, got nan"),
        ({"mean": "abc"}, "mean must be a list, got 'abc'"),
        ({"mean": (0.5, False, 0.5)}, r"mean\[1\] must be a finite number, got False"),
        ({"norm_eps": -1}, "norm_eps must be positive, got -1"),
        ({"mlp_ratio": 0}, "mlp_ratio must be positive, got 0"),
        ({"mlp_ratio": None}, "mlp_ratio must be a finite number, got None"),
        ({"delta": math.inf}, "delta must be a finite number, got inf"),
        ({"delta": 10**400}, "delta must be a finite number, got 1000"),
        ({"drop_path": math.nan}, "drop_path must be a finite number, got nan"),
        ({"elliptical_layers": [2.0]}, r"elliptical_layers\[0\] must be an integer, got 2.0"),
        ({"elliptical_layers": 2}, "elliptical_layers must be a list, got 2"),
        ({"scaling": ["max"]}, r"scaling must be one of max, mean, none, got \['max'\]"),
        ({"metric_seed": 1.5}, "metric_seed must be an integer, got 1.5"),
    ],
)
@pytest.mark.parametrize("name", ["deit_tiny", "fan_tiny"])
def test_values_of_another_type_are_refused(
    name: str, overrides: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        models.config(name, **overrides)


def test_lists_become_tuples_and_integers_floats() -> None:
    config = models.config(
        "fan_tiny", mlp_ratio=3, elliptical_layers=[2, 3], in_chans=1, mean=[0], std=[1]
    )
    assert isinstance(config, FANConfig)
    assert config.elliptical_layers == (2, 3) and config.mean == (0.0,) and config.std == (1.0,)
    assert [type(value) for value in (config.mlp_ratio, *config.mean, *config.std)] == [float] * 3


@pytest.mark.parametrize("name", [3, None, ["deit_tiny"], {}])
def test_a_name_that_is_no_text_is_refused(name: object) -> None:
    with pytest.raises(
        ValueError, match="name must be a known model, got .*; (known: deit_tiny|did you mean)"
    ):
        models.build(name)  # pyright: ignore[reportArgumentType] - what JSON may hold

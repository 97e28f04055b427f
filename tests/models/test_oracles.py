"""Attentions, RVT and Switch against what public implementations gave, see `oracles/oracles.json`.

`oracles/NAME.npz` holds inputs `x`, weights by our names as `w/...`, what was drawn among them, the
outputs `out`, and, where not all are compared, the `rows` that are. Numbers are stored as float16
where they were exactly that.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import models
from models.attention import spkde
from models.attention.base import Attention, Place
from models.attention.catalog import ATTENTIONS, make_attention, make_options
from models.layers.experts import Mixture
from models.layers.routing import Router, auxiliary_loss
from models.rvt import from_public

FOLDER = Path(__file__).parent / "oracles"
ORACLES: dict[str, dict[str, Any]] = json.loads((FOLDER / "oracles.json").read_text())
OTHERS = {"rvt", "switch"}
RVT = {"img_size": 48, "in_chans": 1, "embed_dim": 8, "num_heads": 2, "depth": 2, "mlp_ratio": 2.0}
RVT |= {"pooled_layers": 1, "scaled_layers": 1, "num_classes": 5, "mean": (0.5,), "std": (0.25,)}


def stored(name: str) -> dict[str, Tensor]:
    with np.load(FOLDER / f"{name}.npz") as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file}
    return {key: x.double() if x.is_floating_point() else x for key, x in arrays.items()}


def weights(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix("w/"): x for key, x in given.items() if key.startswith("w/")}


def filled(name: str, given: dict[str, Tensor]) -> Attention:
    about, (_, N, C) = ORACLES[name], given["x"].shape
    options, place = make_options(name, about["options"]), Place(length=about.get("length", N))
    layer = make_attention(C, about["heads"], attention=name, options=options, place=place).double()
    held = dict(layer.named_parameters()) | dict(layer.named_buffers())
    assert dict(layer.named_parameters()).keys() <= weights(given).keys()
    for key, x in weights(given).items():
        held[key].copy_(x)
    return layer


def test_every_mechanism_of_the_papers_has_an_oracle() -> None:
    ours = {"dot", "elliptical"}
    assert ORACLES.keys() - OTHERS == ATTENTIONS.keys() - ours


@pytest.mark.parametrize("name", [name for name in ORACLES if name not in OTHERS])
@torch.no_grad()
def test_attention_gives_what_the_public_implementation_gave(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spkde, "_EQUAL", 0.0)
    given = stored(name)
    out, _ = filled(name, given)(given["x"])
    if "rows" in given:
        assert given["rows"].sum() >= given["rows"].numel() / 2
        out = out[given["rows"]]
    assert (out - given["out"]).abs().max() <= 1e-5 and given["out"].std() > 0.1


@torch.no_grad()
def test_rvt_gives_what_the_public_implementation_gave() -> None:
    given, model = stored("rvt"), models.build("rvt_tiny", **RVT).double().eval()
    model.load_state_dict(from_public(weights(given)))
    assert (model(given["x"]) - given["out"]).abs().max() <= 1e-5


def test_switch_gives_what_the_public_implementation_gave() -> None:
    given = stored("switch")
    E, C, hidden_dim = given["w/w1"].shape
    mixture = Mixture(Router(C, E, capacity=given["x"].shape[1]), hidden_dim).double()
    mixture.load_state_dict(weights(given))
    with torch.no_grad():
        assert (mixture(given["x"]) - given["out"]).abs().max() <= 1e-5 and given["out"].std() > 0.1
        assert torch.equal(mixture.router(given["x"]).experts[0, :, 0], given["first"].long()[0])
    loss = auxiliary_loss(mixture)
    assert isinstance(loss, Tensor) and (loss - given["loss"]).abs() <= 1e-6
    assert auxiliary_loss(mixture) == 0.0

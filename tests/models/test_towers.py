import pytest
import torch
from torch import Tensor, nn

import models
from models.layers.towers import TransJectTowers, TwoTower
from tests.models.small import small

ENCODERS = ["lra_transformer", "lra_transformer_elliptical", "transject", "transformer"]


def pair_of(name: str) -> TwoTower:
    towers = TransJectTowers if name == "transject" else TwoTower
    model = towers(small(name), hidden_dim=8).double()
    nn.init.normal_(model.get_parameter("head.0.bias"))
    return model


def pairs() -> tuple[Tensor, Tensor]:
    """Three pairs, the two sequences of one of different lengths."""
    tokens = torch.randint(0, 11, (3, 2, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(3, 2, 6, dtype=torch.bool)
    mask[0, 0, 2:] = mask[1, 1, 5:] = mask[2, :, 4:] = False
    return tokens, mask


@pytest.mark.parametrize("name", ENCODERS)
def test_both_towers_share_the_encoder_and_the_head_sees_the_pair(name: str) -> None:
    model, (tokens, mask) = pair_of(name), pairs()
    w = model.head.state_dict()
    with torch.no_grad():
        for i in range(3):
            a, b = (model.encoder.features(tokens[i : i + 1, t, mask[i, t]])[0] for t in range(2))
            pair = torch.cat([a, b, a * b, a - b])
            hidden = (w["0.weight"] @ pair + w["0.bias"]).clamp(min=0)
            expected = w["2.weight"] @ hidden + w["2.bias"]
            assert (model(tokens, mask)[i] - expected).abs().max() <= 1e-10


def test_reconstruction_loss_is_that_of_all_sequences() -> None:
    model, (tokens, mask) = pair_of("transject"), pairs()
    assert isinstance(model, TransJectTowers)
    logits, loss = model.logits_and_reconstruction(tokens, mask)
    assert (logits - model(tokens, mask)).abs().max() <= 1e-10
    _, expected = model.encoder.logits_and_reconstruction(tokens.view(6, 6), mask.view(6, 6))
    assert (loss - expected).abs() <= 1e-10


def test_towers_of_the_catalog_have_the_head_of_lra() -> None:
    model = models.build("lra_transformer_elliptical", towers=2)
    assert isinstance(model, TwoTower) and model.config.towers == 2
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert shapes["head.0.weight"] == (128, 256) and shapes["head.2.weight"] == (2, 128)
    assert not [key for key in shapes if key.startswith("encoder.head")]
    assert not hasattr(model, "logits_and_reconstruction")

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

import models
from models.analysis import inversion
from models.analysis.inversion import Encoding, encode, invert, recover_tokens
from models.transject import FeedForward, Layer, TransJect


def small(depth: int = 2) -> TransJect:
    torch.manual_seed(0)
    model = models.build("transject", vocab_size=50, seq_len=12, embed_dim=16, depth=depth)
    assert isinstance(model, TransJect)
    for module in model.modules():
        if isinstance(module, Layer):
            nn.init.constant_(module.r, 1.5)
    return model.double().eval()


def tokens() -> Tensor:
    return torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(1))


def encoded(model: TransJect) -> Encoding:
    with torch.no_grad():
        return encode(model.encoder, model.embed(tokens()))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every step of the iteration."""
    steps, forward = [], FeedForward.forward

    def counting(self: FeedForward, x: Tensor, step: Tensor) -> Tensor:
        steps.append(1)
        return forward(self, x, step)

    monkeypatch.setattr(FeedForward, "forward", counting)
    return steps


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("field", ["states", "eigenvalues"])
def test_an_encoding_that_is_not_finite_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, field: str, value: float
) -> None:
    model = small()
    encoding = encoded(model)
    broken = getattr(encoding, field).clone()
    broken.view(-1)[3] = value
    steps = counted(monkeypatch)
    with pytest.raises(ValueError, match="encoding must be finite"):
        invert(model.encoder, dataclasses.replace(encoding, **{field: broken}))
    assert len(steps) < 200


def test_a_tolerance_out_of_reach_is_refused_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    model, steps = small().float(), counted(monkeypatch)
    for tolerance in (-1.0, math.nan):
        with pytest.raises(ValueError, match="tolerance must be within reach of torch.float32"):
            invert(model.encoder, encoded(model), tolerance=tolerance)
    assert len(steps) < 200


@pytest.mark.parametrize("r", [0.0, 3.0, 20.0])
def test_the_slowest_contraction_is_followed_to_its_end(r: float) -> None:
    model = small(depth=1)
    for module in model.modules():
        if isinstance(module, Layer):
            nn.init.constant_(module.r, r)
    x = model.embed(tokens())
    found = invert(model.encoder, encoded(model))
    assert (found - x).abs().max() < 1e-6


@pytest.mark.parametrize("held", [1, 49, 50, 500, 10**6])
def test_tokens_are_recovered_whatever_fits_into_memory(
    monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(inversion, "_MAX_DISTANCES", held)
    model = small()
    assert torch.equal(recover_tokens(model, encoded(model)), tokens())

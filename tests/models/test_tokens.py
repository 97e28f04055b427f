import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from models.layers.tokens import (
    Pooling,
    SinusoidalPositions,
    TokenModel,
    masked_max,
    masked_mean,
    pool,
    sinusoidal_positions,
)

TOKENS = torch.tensor([[0, 1, 2], [9, 0, 0]])
MASK = torch.tensor([[True, True, True], [True, False, False]])
PAIRS = TOKENS[:, None].expand(2, 2, 3)
MODEL = TokenModel(SimpleNamespace(vocab_size=10, seq_len=3))


@pytest.mark.parametrize("mask", [None, MASK])
def test_tokens_within_the_rules_pass(mask: Tensor | None) -> None:
    MODEL.check(TOKENS, mask)
    MODEL.check(TOKENS[:0], None if mask is None else mask[:0])
    MODEL.check(PAIRS, mask if mask is None else mask[:, None].expand(2, 2, 3), towers=2)


@pytest.mark.parametrize(
    ("tokens", "mask", "towers", "message"),
    [
        (TOKENS[0], None, 1, r"tokens must be \(B, 1..3\), got \(3,\)"),
        (TOKENS[None], None, 1, r"tokens must be \(B, 1..3\), got \(1, 2, 3\)"),
        (torch.tensor(4), None, 1, r"tokens must be \(B, 1..3\), got \(\)"),
        (TOKENS.repeat(1, 2), None, 1, r"tokens must be \(B, 1..3\), got \(2, 6\)"),
        (TOKENS[:, :0], None, 1, r"tokens must be \(B, 1..3\), got \(2, 0\)"),
        (TOKENS.float(), None, 1, "tokens must be int64, got torch.float32"),
        (TOKENS.int(), None, 1, "tokens must be int64, got torch.int32"),
        (TOKENS - 1, None, 1, r"tokens must lie in 0..9, got -1..8"),
        (TOKENS + 1, None, 1, r"tokens must lie in 0..9, got 1..10"),
        (TOKENS, MASK.long(), 1, r"must be bool of shape \(2, 3\), got torch.int64 \(2, 3\)"),
        (TOKENS, MASK[:, :2], 1, r"must be bool of shape \(2, 3\), got torch.bool \(2, 2\)"),
        (TOKENS, MASK[:1], 1, r"must be bool of shape \(2, 3\), got torch.bool \(1, 3\)"),
        (
            TOKENS,
            MASK[:, None, None],
            1,
            r"must be bool of shape \(2, 3\), got torch.bool \(2, 1, 1",
        ),
        (TOKENS, MASK & ~MASK[1], 1, r"mask must have a real token in .*, got none in \[1\]"),
        (TOKENS, None, 2, r"tokens must be \(B, 2, 1..3\), got"),
        (TOKENS[:, None], None, 2, r"tokens must be \(B, 2, 1..3\), got"),
        (PAIRS, torch.eye(2)[..., None].expand(2, 2, 3) < 1, 2, r"in \[\[0, 0\], \[1, 1\]\]"),
    ],
)
def test_tokens_and_masks_against_the_rules_are_refused(
    tokens: Tensor, mask: Tensor | None, towers: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        MODEL.check(tokens, mask, towers=towers)


def test_positions_are_rounded_once_to_the_precision_of_the_model() -> None:
    positions = SinusoidalPositions(50, 8)
    assert torch.equal(positions(20), sinusoidal_positions(50, 8).float()[:20])
    assert torch.equal(positions.double()(20), sinusoidal_positions(50, 8)[:20])
    assert not positions.state_dict()


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize("rubbish", [0.0, 1e30, math.inf, math.nan])
def test_pooling_is_the_formula_over_real_tokens(pooling: Pooling, rubbish: float) -> None:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 5
    padded = x.masked_fill(~MASK[:, :, None], rubbish)
    for b, real in enumerate((x[0], x[1, :1])):
        expected = {"mean": real.mean(0), "max": real.amax(0), "cls": real[0]}[pooling]
        assert (pool(padded, MASK, pooling)[b] - expected).abs().max() <= 1e-12
        assert (pool(real[None], None, pooling) - expected).abs().max() <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mean_of_many_tokens_in_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    x = torch.rand(1, 4096, 8, generator=torch.Generator().manual_seed(0)) + 100
    mask = torch.arange(4096)[None] < torch.tensor([[509], [4095]])
    x = x.to(dtype).expand(2, -1, -1)
    found = masked_mean(x, mask)
    assert found.dtype == dtype
    for b, n in ((0, 509), (1, 4095)):
        expected = x[b, :n].double().mean(0)
        assert ((found[b] - expected).abs() <= torch.finfo(dtype).eps / 2 * 1.01 * expected).all()


def test_gradient_of_pooling_does_not_reach_padding() -> None:
    for pooled in (masked_mean, masked_max):
        x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
        pooled(x, MASK).square().sum().backward()
        assert x.grad is not None and x.grad.isfinite().all()
        assert torch.equal(x.grad[1, 1:], torch.zeros(2, 4)) and x.grad[1, 0].abs().min() > 0

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from models.analysis import diagnostics

TOLERANCE = 1e-10
LENGTHS = [6, 4, 1]  # real tokens of the three samples


def values(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def padding(lengths: list[int], length: int) -> Tensor:
    return torch.arange(length) < torch.tensor(lengths)[:, None]


def attention_maps(*shape: int, seed: int = 0, mask: Tensor | None = None) -> Tensor:
    scores = values(*shape, seed=seed)
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    return scores.softmax(-1)


def pairs(count: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(count) for j in range(i + 1, count)]


def factor_of(x: Tensor, out: Tensor) -> float:
    ratios = [
        math.dist(out[i].tolist(), out[j].tolist()) / math.dist(x[i].tolist(), x[j].tolist())
        for i, j in pairs(len(x))
    ]
    return float(np.mean(ratios)) if ratios else 1.0


def cosine_of(x: Tensor) -> float:
    cosines = [float(x[i] @ x[j] / (x[i].norm() * x[j].norm())) for i, j in pairs(len(x))]
    return float(np.mean(cosines)) if cosines else 1.0


def test_figures_of_tokens_are_the_formulas_over_real_ones() -> None:
    x, out, mask = values(3, 6, 5), values(3, 6, 7, seed=1), padding(LENGTHS, 6)
    factors = diagnostics.activation_factor(x, out, mask)
    cosines = diagnostics.cosine_similarity(x, mask)
    for b, length in enumerate(LENGTHS):
        assert abs(float(factors[b]) - factor_of(x[b, :length], out[b, :length])) <= TOLERANCE
        assert abs(float(cosines[b]) - cosine_of(x[b, :length])) <= TOLERANCE


@pytest.mark.parametrize("width", [5, 16, 37])
def test_differential_entropy_is_that_of_scipy(width: int) -> None:
    x, mask = values(3, 6, width), padding(LENGTHS, 6)
    found = diagnostics.differential_entropy(x, mask)
    for b, length in enumerate(LENGTHS):
        real = x[b, :length].numpy()
        expected = scipy.stats.differential_entropy(real, axis=-1, method="vasicek").mean()
        assert abs(float(found[b]) - expected) <= TOLERANCE


def test_figures_at_their_limits() -> None:
    rotation, x = torch.linalg.qr(values(5, 5, seed=1)).Q, values(2, 4, 5)
    factor = diagnostics.activation_factor(x, 3 * x @ rotation + 1)
    assert (factor - 3).abs().max() <= TOLERANCE
    x[:, 1] = x[:, 0]  # equal tokens have no ratio
    assert diagnostics.activation_factor(x, 2 * x).tolist() == pytest.approx([2.0, 2.0])
    zeros = torch.zeros(2, 4, 5)
    assert diagnostics.activation_factor(zeros, x).tolist() == [1.0, 1.0]
    assert diagnostics.cosine_similarity(zeros).tolist() == [0.0, 0.0]
    assert diagnostics.cosine_similarity(zeros + 1).tolist() == pytest.approx([1.0, 1.0])
    assert diagnostics.cosine_similarity(torch.eye(3)[None]).tolist() == pytest.approx([0.0])
    assert diagnostics.differential_entropy(zeros).tolist() == [-math.inf, -math.inf]
    maps = attention_maps(2, 1, 5, 5)
    assert diagnostics.head_redundancy(maps).tolist() == [0.0, 0.0]
    assert diagnostics.head_redundancy(maps.expand(-1, 3, -1, -1)).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="at least 5 activations per token, got 4"):
        diagnostics.differential_entropy(torch.ones(1, 2, 4))
    with pytest.raises(ValueError, match="maps must have at least one layer"):
        diagnostics.rollout([])


def test_head_redundancy_is_the_formula() -> None:
    mask = padding(LENGTHS, 6)
    maps = attention_maps(3, 4, 6, 6, mask=mask)
    found = diagnostics.head_redundancy(maps, mask)
    for b, length in enumerate(LENGTHS):
        real = maps[b, :, :length, :length]
        apart = [math.sqrt(float((real[h] - real[k]).square().sum())) for h, k in pairs(4)]
        assert abs(float(found[b]) - np.mean(apart)) <= TOLERANCE


def test_rollout_is_the_formula() -> None:
    maps = [attention_maps(2, 3, 5, 5, seed=layer) for layer in range(4)]
    found = diagnostics.rollout(maps)
    for b in range(2):
        expected = torch.eye(5, dtype=torch.float64)
        for attn in maps:
            mixed = torch.zeros(5, 5, dtype=torch.float64)
            for h in range(3):
                mixed += attn[b, h] / 3
            mixed += torch.eye(5, dtype=torch.float64)
            mixed /= mixed.sum(-1, keepdim=True)
            expected = mixed @ expected
        assert (found[b] - expected).abs().max() <= TOLERANCE
    assert (found.sum(-1) - 1).abs().max() <= TOLERANCE
    weights = values(2, 2, 5, seed=9).softmax(-1)  # of some readers: their share of the whole
    assert (diagnostics.rollout(maps, weights) - weights @ found).abs().max() <= TOLERANCE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_is_measured_in_float32(dtype: torch.dtype) -> None:
    x = values(2, 5, 8, dtype=torch.float32).to(dtype)
    for figure in (diagnostics.cosine_similarity, diagnostics.differential_entropy):
        assert torch.equal(figure(x), figure(x.float()))
    assert torch.equal(
        diagnostics.activation_factor(x, x * 2), diagnostics.activation_factor(x.float(), x * 2)
    )

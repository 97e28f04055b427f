from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.attention.metric import (
    SCALINGS,
    Scaling,
    attention_weights,
    consistent_metric,
    estimate_metric,
    random_metric,
)
from tests.models import plain_elliptical as plain

REAL = torch.tensor([[True] * 5, [True, False, True, True, False]])
PRECISIONS = [(torch.float64, 1e-10), (torch.float32, 1e-5)]


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def qkv(scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (draw(2, 3, 5, 4, seed=seed, scale=scale) for seed in range(3))
    return q, k, v


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("mask", [None, REAL])
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_difference_is_the_formula(
    scaling: Scaling, mask: Tensor | None, dtype: torch.dtype, tolerance: float
) -> None:
    v, v_prev = (draw(2, 3, 5, 4, seed=seed).to(dtype) for seed in (0, 1))
    m = estimate_metric(v, v_prev, scaling=scaling, delta=0.5, mask=mask)
    assert m.shape == (2, 3, 1, 4) and m.dtype == dtype
    for b, h in product(range(2), range(3)):
        real = slice(None) if mask is None else mask[b]
        change = plain.difference(v[b, h, real].double(), v_prev[b, h, real].double(), 0.5)
        assert (m[b, h, 0] - plain.scaled(change, scaling)).abs().max() <= tolerance


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("mask", [None, REAL])
@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_consistent_is_the_formula(
    scaling: Scaling, mask: Tensor | None, dtype: torch.dtype, tolerance: float
) -> None:
    q, k, v = (part.to(dtype) for part in qkv())
    m = consistent_metric(q, k, v, scaling=scaling, mask=mask)
    assert m.shape == (2, 3, 1, 4) and m.dtype == dtype
    for b, h in product(range(2), range(3)):
        real = slice(None) if mask is None else mask[b]
        change = plain.consistent(*(part[b, h, real].double() for part in (q, k, v)))
        assert (m[b, h, 0] - plain.scaled(change, scaling)).abs().max() <= tolerance


@pytest.mark.parametrize("scale", [1e-4, 10.0, 100.0])
def test_consistent_is_the_formula_for_tiny_and_huge_keys(scale: float) -> None:
    q, k, v = qkv()
    m = consistent_metric(q, k * scale, v, scaling="none")
    for b, h in product(range(2), range(3)):
        expected = plain.consistent(q[b, h], k[b, h] * scale, v[b, h])
        assert (m[b, h, 0] - expected).abs().max() <= 1e-10


def test_consistent_takes_more_dimensions_than_one_product_holds() -> None:
    q, k, v = (draw(1, 1, 3, 37, seed=seed) for seed in range(3))
    m = consistent_metric(q, k, v, scaling="none")[0, 0, 0]
    assert (m - plain.consistent(q[0, 0], k[0, 0], v[0, 0])).abs().max() <= 1e-10


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e9, 1e30])
def test_metric_of_zero_and_huge_values_is_finite(scaling: Scaling, scale: float) -> None:
    q, k, v = (part.float() * scale for part in qkv())
    for m in (
        estimate_metric(v, k, scaling=scaling),
        consistent_metric(q, k / max(scale, 1.0), v, scaling=scaling),
        consistent_metric(q / max(scale, 1.0), k, v, scaling=scaling, mask=REAL),
    ):
        assert m.isfinite().all() and (m >= 0).all()


@pytest.mark.parametrize("scaling", ["max", "mean"])
def test_nothing_that_changes_means_ones(scaling: Scaling) -> None:
    q, k, v = (part.float() for part in qkv())
    ones = torch.ones(2, 3, 1, 4)
    assert torch.equal(estimate_metric(v, v, scaling=scaling), ones)
    for first_only in (k[:, :, :1], v[:, :, :1]):
        same = first_only.expand_as(v)
        assert torch.equal(consistent_metric(q, same, v, scaling=scaling), ones)
        assert torch.equal(consistent_metric(q, k, same, scaling=scaling), ones)


def test_unscaled_metric_of_unchanged_values_stays_zero() -> None:
    _, _, v = qkv()
    assert torch.equal(estimate_metric(v, v, scaling="none"), torch.zeros(2, 3, 1, 4).double())


def test_largest_entry_is_one_under_max_and_the_mean_is_one_under_mean() -> None:
    q, k, v = qkv()
    for estimate in (
        lambda s: estimate_metric(v, k, scaling=s),
        lambda s: consistent_metric(q, k, v, scaling=s),
    ):
        torch.testing.assert_close(estimate("max").amax(-1), torch.ones(2, 3, 1).double())
        torch.testing.assert_close(estimate("mean").mean(-1), torch.ones(2, 3, 1).double())


@pytest.mark.parametrize("scaling", SCALINGS)
def test_gradient_through_an_all_zero_metric_is_finite(scaling: Scaling) -> None:
    _, _, v = qkv()
    v = v.float().requires_grad_()
    estimate_metric(v, v.detach().clone(), scaling=scaling).sum().backward()
    assert v.grad is not None and v.grad.isfinite().all()
    same = torch.ones(1, 2, 3, 4, requires_grad=True)
    consistent_metric(same, same, same, scaling=scaling).sum().backward()
    assert same.grad is not None and same.grad.isfinite().all()


@pytest.mark.parametrize("scaling", SCALINGS)
def test_metrics_have_the_gradient_of_their_values(scaling: Scaling) -> None:
    q, k, v = (part[:1, :1, :4].clone().requires_grad_() for part in qkv())
    mask = torch.tensor([[True, True, True, False]])
    assert torch.autograd.gradcheck(
        lambda *parts: consistent_metric(*parts, scaling=scaling, mask=mask), (q, k, v)
    )
    assert torch.autograd.gradcheck(
        lambda *parts: estimate_metric(*parts, scaling=scaling, mask=mask), (v, k)
    )


def test_metric_of_a_sample_is_that_of_its_real_tokens_alone() -> None:
    q, k, v = qkv()
    for b in range(2):
        alone = [part[b : b + 1, :, REAL[b]] for part in (q, k, v)]
        expected = consistent_metric(*alone)
        assert (consistent_metric(q, k, v, mask=REAL)[b] - expected[0]).abs().max() <= 1e-12
        expected = estimate_metric(alone[2], alone[1])
        assert (estimate_metric(v, k, mask=REAL)[b] - expected[0]).abs().max() <= 1e-12


def test_padding_may_hold_anything_finite() -> None:
    q, k, v = qkv()
    rubbish = REAL[:, None, :, None].logical_not() * 1e6
    for estimate in (
        lambda q, k, v: estimate_metric(v, k, mask=REAL),
        lambda q, k, v: consistent_metric(q, k, v, mask=REAL),
    ):
        change = estimate(q, k, v) - estimate(q + rubbish, k - rubbish, v + 2 * rubbish)
        assert change.abs().max() <= 1e-12


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("rubbish", [1e12, 1e30, -1e30])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_padding_on_the_left_may_hold_huge_values(
    scaling: Scaling, rubbish: float, dtype: torch.dtype
) -> None:
    q, k, v = (part.to(dtype) for part in qkv())
    padded = [F.pad(part, (0, 0, 2, 0), value=rubbish) for part in (q, k, v)]
    real = F.pad(torch.ones(2, 5, dtype=torch.bool), (2, 0))
    for found, expected in (
        (
            consistent_metric(*padded, scaling=scaling, mask=real),
            consistent_metric(q, k, v, scaling=scaling),
        ),
        (
            estimate_metric(padded[2], -padded[1], scaling=scaling, mask=real),
            estimate_metric(v, -k, scaling=scaling),
        ),
    ):
        assert (found - expected).abs().max() <= (1e-12 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_difference_of_many_tokens_in_half_precision_is_the_formula(
    scaling: Scaling, dtype: torch.dtype, masked: bool
) -> None:
    v = (48 + draw(1, 2, 4096, 4)).to(dtype)
    mask = torch.arange(4096)[None] < 3000 if masked else None
    m = estimate_metric(v, torch.zeros_like(v), scaling=scaling, mask=mask)
    real = v.double() if mask is None else v.double()[:, :, :3000]
    expected = estimate_metric(real, torch.zeros_like(real), scaling=scaling)
    assert m.dtype == torch.float32
    assert ((m - expected).abs() <= 1e-5 * expected).all()


@pytest.mark.parametrize("scaling", SCALINGS)
def test_difference_of_the_largest_numbers_is_finite(scaling: Scaling) -> None:
    v = torch.full((1, 2, 5, 4), 3e38)
    v[..., 1] = 1.0
    for previous in (torch.zeros_like(v), -v):
        for mask in (None, REAL[1:]):
            m = estimate_metric(v, previous, scaling=scaling, mask=mask)
            if scaling != "none" or not previous.any():  # there a change itself is infinite
                assert m.isfinite().all() and m[..., 0].min() >= 1
            assert (m[..., 1] <= 2).all()


def test_random_metric_is_uniform_draws_scaled_by_their_maximum() -> None:
    draws = torch.rand(5, 3, 1, 4, generator=torch.Generator().manual_seed(7))
    m = random_metric(3, 4, torch.Generator().manual_seed(7), batch_size=5)
    assert torch.equal(m, draws / draws.amax(-1, keepdim=True))


def test_weights_of_attention_are_the_softmax_over_real_keys() -> None:
    q, k, _ = qkv()
    weights = attention_weights(q, k, REAL)
    for b, h, n in product(range(2), range(3), range(5)):
        exact = torch.stack([(q[b, h, n] @ k[b, h, j] / 2).exp() for j in range(5)]) * REAL[b]
        assert (weights[b, h, n] - exact / exact.sum()).abs().max() <= 1e-10

from itertools import product
from typing import get_args

import pytest
import torch
from torch import Tensor

from models.attention.metric import Scaling, consistent_metric, estimate_metric, random_metric
from tests.models import plain_transformer as plain
from tests.models.small import draw

SCALINGS = get_args(Scaling)
REAL = torch.tensor([[True] * 5, [True, False, True, True, False]])


def qkv() -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (draw(2, 3, 5, 4, seed=seed) for seed in range(3))
    return q, k, v


@pytest.mark.parametrize(
    ("sizes", "scale"),
    # Tiny and huge keys, and more dimensions than one product takes.
    [((2, 3, 5, 4), 1e-4), ((2, 3, 5, 4), 10.0), ((2, 3, 5, 4), 100.0), ((1, 1, 3, 37), 1.0)],
)
def test_consistent_is_the_formula(sizes: tuple[int, ...], scale: float) -> None:
    q, k, v = (draw(*sizes, seed=seed) for seed in range(3))
    m = consistent_metric(q, k * scale, v, scaling="none")
    for b, h in product(*map(range, sizes[:2])):
        expected = plain.consistent(q[b, h], k[b, h] * scale, v[b, h])
        assert (m[b, h, 0] - expected).abs().max() <= 1e-10


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e9, 1e30])
def test_metric_of_zero_and_huge_values_is_finite_with_its_gradient(
    scaling: Scaling, scale: float
) -> None:
    q, k, v = (part.float() * scale for part in qkv())
    for m in (
        estimate_metric(v, k, scaling=scaling),
        consistent_metric(q, k / max(scale, 1.0), v, scaling=scaling),
        consistent_metric(q / max(scale, 1.0), k, v, scaling=scaling, mask=REAL),
    ):
        assert m.isfinite().all() and (m >= 0).all()
    v.requires_grad_()
    estimate_metric(v, v.detach().clone(), scaling=scaling).sum().backward()
    assert v.grad is not None and v.grad.isfinite().all()
    same = torch.ones(1, 2, 3, 4, requires_grad=True)
    consistent_metric(same, same, same, scaling=scaling).sum().backward()
    assert same.grad is not None and same.grad.isfinite().all()


@pytest.mark.parametrize("scaling", ["max", "mean"])
def test_nothing_that_changes_means_ones(scaling: Scaling) -> None:
    q, k, v = (part.float() for part in qkv())
    ones = torch.ones(2, 3, 1, 4)
    assert torch.equal(estimate_metric(v, v, scaling=scaling), ones)
    for first_only in (k[:, :, :1], v[:, :, :1]):
        same = first_only.expand_as(v)
        assert torch.equal(consistent_metric(q, same, v, scaling=scaling), ones)
        assert torch.equal(consistent_metric(q, k, same, scaling=scaling), ones)
    assert not estimate_metric(v, v, scaling="none").any()


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

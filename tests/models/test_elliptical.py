import math

import pytest
import torch
from torch import Tensor

import models
from models.elliptical import Attention, Scaling, estimate_metric, is_elliptical, metric_gradient


def plain_metric(v: Tensor, v_prev: Tensor, scaling: str, delta: float) -> Tensor:
    """EA eq. 10 and remark 3, written with loops."""
    B, H, N, D = v.shape
    m = torch.zeros(B, H, D, dtype=v.dtype)
    for b in range(B):
        for h in range(H):
            for i in range(D):
                change = sum(abs(float(v[b, h, n, i] - v_prev[b, h, n, i])) for n in range(N))
                m[b, h, i] = change / N / delta
            if scaling != "none":
                row = m[b, h]
                m[b, h] = row / (row.max() if scaling == "max" else row.mean())
    return m


@torch.no_grad()
def plain_attention(layer: Attention, x: Tensor, v_prev: Tensor | None) -> Tensor:
    """EA eq. 13 with diag(m) written out, one sample and head at a time."""
    B, N, C = x.shape
    H, D = layer.num_heads, C // layer.num_heads
    q, k, v = (x @ layer.qkv.weight.T + layer.qkv.bias).chunk(3, dim=-1)
    out = torch.zeros(B, N, C, dtype=x.dtype)
    for b in range(B):
        for h in range(H):
            part = slice(h * D, (h + 1) * D)
            metric = torch.eye(D, dtype=x.dtype)
            if v_prev is not None:
                values = v[b, :, part][None, None]
                m = plain_metric(values, v_prev[b, h][None, None], layer.scaling, layer.delta)
                metric = torch.diag(m[0, 0])
            scores = q[b, :, part] @ metric @ k[b, :, part].T / math.sqrt(D)
            out[b, :, part] = scores.softmax(-1) @ v[b, :, part]
    return out @ layer.proj.weight.T + layer.proj.bias


def values(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("scaling", ["max", "mean", "none"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_metric_is_the_formula(scaling: Scaling, dtype: torch.dtype, tolerance: float) -> None:
    v, v_prev = values(2, 3, 5, 4, dtype=dtype), values(2, 3, 5, 4, seed=1, dtype=dtype)
    m = estimate_metric(v, v_prev, scaling=scaling, delta=0.5)[:, :, 0]
    assert (m - plain_metric(v, v_prev, scaling, 0.5)).abs().max() <= tolerance


@pytest.mark.parametrize("scaling", ["max", "mean", "none"])
def test_attention_is_the_formula(scaling: Scaling) -> None:
    torch.manual_seed(0)
    layer = Attention(12, 3, elliptical=True, scaling=scaling).double()
    x, v_prev = values(2, 5, 12), values(2, 3, 5, 4, seed=1)
    for previous in (None, v_prev):
        out, _ = layer(x, previous)
        assert (out - plain_attention(layer, x, previous)).abs().max() <= 1e-10


def test_unchanged_values_mean_ordinary_attention_bit_for_bit() -> None:
    torch.manual_seed(0)
    layer = Attention(8, 2, elliptical=True)
    x = values(2, 5, 8, dtype=torch.float32)
    ordinary, v = layer(x)
    elliptical, _ = layer(x, v)
    assert torch.equal(ordinary, elliptical)
    assert torch.equal(estimate_metric(v, v), torch.ones(2, 2, 1, 4))


def test_unscaled_metric_of_unchanged_values_stays_zero() -> None:
    v = values(1, 1, 3, 4)
    assert torch.equal(estimate_metric(v, v, scaling="none"), torch.zeros(1, 1, 1, 4).double())


@pytest.mark.parametrize("scaling", ["max", "mean", "none"])
def test_gradient_through_an_all_zero_metric_is_finite(scaling: Scaling) -> None:
    v = values(1, 2, 3, 4).requires_grad_()
    estimate_metric(v, v.detach().clone(), scaling=scaling).sum().backward()
    assert v.grad is not None and v.grad.isfinite().all()


def test_metric_depends_on_its_own_sample_only() -> None:
    v, v_prev = values(3, 2, 5, 4), values(3, 2, 5, 4, seed=1)
    alone = estimate_metric(v[1:2], v_prev[1:2])
    assert torch.equal(estimate_metric(v, v_prev)[1:2], alone)


def test_gradient_flows_through_the_metric_exactly_when_switched_on() -> None:
    torch.manual_seed(0)
    layer = Attention(8, 2, elliptical=True).double()
    x = values(1, 4, 8)
    v_prev = values(1, 2, 4, 4, seed=1).requires_grad_()
    with metric_gradient(layer, True):
        torch.autograd.gradcheck(lambda previous: layer(x, previous)[0], (v_prev,))
        out, _ = layer(x, v_prev)
        (gradient,) = torch.autograd.grad(out.square().sum(), v_prev)
        assert gradient.abs().max() > 0
    out, _ = layer(x, v_prev)
    assert torch.autograd.grad(out.sum(), v_prev, allow_unused=True) == (None,)


def test_metric_gradient_switch_returns_after_an_error() -> None:
    model = models.build("deit_tiny_elliptical", depth=2, img_size=32, num_classes=3)
    layers = [layer for layer in model.modules() if isinstance(layer, Attention)]
    with pytest.raises(RuntimeError, match="stop"), metric_gradient(model, True):
        assert all(layer.metric_gradient for layer in layers)
        raise RuntimeError("stop")
    assert not any(layer.metric_gradient for layer in layers)


def test_is_elliptical_tells_the_twins_apart() -> None:
    small = {"depth": 2, "img_size": 16, "num_classes": 2}
    assert is_elliptical(models.build("deit_tiny_elliptical", **small))
    assert not is_elliptical(models.build("deit_tiny", **small))

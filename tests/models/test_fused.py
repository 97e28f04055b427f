"""The kernel that scales queries by m: when it is asked, and what happens where it cannot run."""

import importlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from models.attention import fused
from models.attention.fused import scale_queries, tried_kernel
from models.attention.metric import Scaling, estimate_metric
from tests.models.small import small

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """What was tried once is not tried again."""
    tried_kernel.cache_clear()
    yield
    tried_kernel.cache_clear()


class Kernel:
    """What computes as the kernel does, and counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, q: Tensor, v: Tensor, v_prev: Tensor, *, mean: bool) -> None:
        self.calls += 1
        m = estimate_metric(v.float(), v_prev.float(), scaling="mean" if mean else "max")
        q.copy_(q.float() * m)


def heads(
    dtype: torch.dtype, device: str = "cpu", N: int = 7, D: int = 8
) -> tuple[Tensor, Tensor, Tensor]:
    """q, v and the values of the previous layer, (2, 3, N, D), as a layer has them."""
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(2, 2, N, 3, 3, D, generator=generator).to(device, dtype)
    (q, _, v), (*_, v_prev) = (each.permute(2, 0, 3, 1, 4).unbind(0) for each in qkv)
    return q, v, v_prev


@pytest.mark.parametrize("scaling", ["max", "mean"])
def test_layers_ask_for_it_in_inference_alone_and_answer_the_same(
    scaling: Scaling, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small("deit_tiny_elliptical", scaling=scaling).float()
    images = torch.rand(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    kernel = Kernel()
    with torch.inference_mode():
        expected = model(images)
        monkeypatch.setattr(fused, "tried_kernel", lambda *_: kernel)
        found = model(images)
    assert kernel.calls == 1  # of two layers the first has no values before it
    assert torch.allclose(found, expected, atol=1e-6)
    model(images).sum().backward()
    with torch.no_grad():
        model(images)
    assert kernel.calls == 1


@pytest.mark.parametrize(
    "overrides", [{"estimator": "consistent"}, {"estimator": "random"}, {"scaling": "none"}]
)
def test_other_metrics_do_without_it(
    overrides: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel()
    monkeypatch.setattr(fused, "tried_kernel", lambda *_: kernel)
    with torch.inference_mode():
        small("deit_tiny_elliptical", **overrides).float()(torch.rand(2, 3, 12, 12))
    assert not kernel.calls


def test_padding_float64_long_sequences_and_the_cpu_do_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q, v, v_prev = heads(torch.float32)
    before = q.clone()
    assert not scale_queries(q, v, v_prev, None, "max")
    kernel = Kernel()
    monkeypatch.setattr(fused, "tried_kernel", lambda *_: kernel)
    assert not scale_queries(q, v, v_prev, torch.ones(2, 7, dtype=torch.bool), "max")
    assert not scale_queries(*heads(torch.float64), None, "max")
    assert not scale_queries(*heads(torch.float32, N=1025, D=1), None, "max")
    assert not scale_queries(q.mT, v.mT, v_prev.mT, None, "max")
    assert not kernel.calls and torch.equal(q, before)
    assert scale_queries(q, v, v_prev, None, "max") and kernel.calls == 1


def on_a_device(monkeypatch: pytest.MonkeyPatch, module: object) -> fused.ScaleQueries | None:
    """What a first try gives, with the CPU in the place of a device and this for the kernel."""

    def load(_: str) -> object:
        if isinstance(module, Exception):
            raise module
        return module

    monkeypatch.setattr(importlib, "import_module", load)
    moved = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *where: moved(self, *where[1:]))
    return tried_kernel(torch.device("cuda"), torch.bfloat16)


def test_first_try_decides(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = Kernel()
    assert on_a_device(monkeypatch, SimpleNamespace(scale_queries=kernel)) is kernel
    for wrong in (lambda *_, mean: None, lambda q, *_, mean: q.fill_(torch.nan)):
        tried_kernel.cache_clear()
        assert on_a_device(monkeypatch, SimpleNamespace(scale_queries=wrong)) is None
        assert "the kernel errs by" in caplog.text
    tried_kernel.cache_clear()
    assert on_a_device(monkeypatch, ModuleNotFoundError("No module named 'triton'")) is None


@NEEDS_GPU
@pytest.mark.parametrize("scaling", ["max", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("N", "D"), [(197, 64), (65, 64), (50, 40), (1, 64), (1024, 32)])
def test_kernel_gives_what_torch_gives(
    N: int, D: int, dtype: torch.dtype, scaling: Scaling
) -> None:
    q, v, v_prev = heads(dtype, "cuda", N, D)
    m = estimate_metric(v.float(), v_prev.float(), scaling=scaling)
    expected, others = q.float() * m, v.clone()
    assert scale_queries(q, v, v_prev, None, scaling)
    assert torch.allclose(q.float(), expected, rtol=torch.finfo(dtype).eps, atol=1e-5)
    assert torch.equal(v, others)

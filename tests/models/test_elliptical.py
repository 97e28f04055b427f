import copy
import math
import pickle
from itertools import product
from typing import Any, get_args
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.attention.base import has_metric, is_randomized, layers_of, metric_gradient
from models.attention.dot import DotAttention
from models.attention.elliptical import EllipticalAttention, EllipticalOptions
from models.attention.metric import Estimator, Scaling, attention_weights
from tests.models import plain_transformer as plain
from tests.models.small import draw, small

REAL = torch.tensor([[True] * 5, [True, False, True, True, False]])
LAST = torch.tensor([[False, False, True, True, True]] * 2)  # padding on the left
SCALINGS, ESTIMATORS = get_args(Scaling), get_args(Estimator)


def make(embed_dim: int = 12, num_heads: int = 3, **options: Any) -> EllipticalAttention:
    torch.manual_seed(0)
    return EllipticalAttention(embed_dim, num_heads, options=EllipticalOptions(**options))


def elliptical_layers(model: torch.nn.Module) -> list[EllipticalAttention]:
    return [layer for layer in layers_of(model) if isinstance(layer, EllipticalAttention)]


def deit(name: str = "deit_tiny_elliptical", **overrides: Any) -> torch.nn.Module:
    return small(name, **{"in_chans": 1, "depth": 3} | overrides).float()


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("mask", "rubbish"), [(None, 0.0), (REAL, 0.0), (REAL, 1e12), (REAL, 1e30), (LAST, 1e30)]
)
def test_attention_is_the_formula_whatever_the_padding_holds(
    scaling: Scaling, estimator: Estimator, mask: Tensor | None, rubbish: float
) -> None:
    options: dict[str, Any] = {"estimator": estimator, "scaling": scaling, "delta": 0.5}
    layer = make(**options, metric_seed=3).double()
    x, v_prev = draw(2, 5, 12), draw(2, 5, 12, seed=1)
    if mask is not None and rubbish:
        padded = ~mask[..., None]
        x, v_prev = x.masked_fill(padded, rubbish), v_prev.masked_fill(padded, -rubbish)
    exact = {f"attn.{key}": value.detach() for key, value in layer.state_dict().items()}
    exact["attn.table"] = layer.table
    expected = torch.zeros(2, 2, 5, 12, dtype=torch.float64)
    for i, b in product(range(2), range(2)):
        real = slice(None) if mask is None else mask[b]
        previous = v_prev[b, real] if i else None
        expected[i, b, real], _ = plain.attention(x[b, real], exact, "attn", 3, previous, **options)
    real = torch.ones(2, 5, dtype=torch.bool) if mask is None else mask
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        layer, by_head = layer.to(dtype), v_prev.unflatten(2, (3, 4)).transpose(1, 2).to(dtype)
        for previous, wanted in zip((None, by_head), expected, strict=True):
            out, _ = layer(x.to(dtype), previous, mask)
            assert (out - wanted)[real].abs().max() <= tolerance


@pytest.mark.parametrize("scaling", ["max", "mean"])
def test_unchanged_values_mean_ordinary_attention_bit_for_bit(scaling: Scaling) -> None:
    layer, plain_layer = make(scaling=scaling), DotAttention(12, 3)
    plain_layer.load_state_dict(layer.state_dict())
    x = draw(2, 5, 12).float()
    ordinary, v = plain_layer(x)
    for out, values in (layer(x), layer(x, v), plain_layer(x, v)):
        assert torch.equal(out, ordinary) and torch.equal(values, v)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("estimator", ["difference", "consistent"])
def test_gradient_flows_through_the_metric_exactly_when_switched_on(
    estimator: Estimator, scaling: Scaling
) -> None:
    layer = make(8, 2, estimator=estimator, scaling=scaling).double().requires_grad_(False)
    x, v_prev = draw(1, 4, 8).requires_grad_(), draw(1, 2, 4, 4, seed=1).requires_grad_()
    mask = torch.tensor([[True, True, True, False]])
    with metric_gradient(layer, True):
        torch.autograd.gradcheck(lambda *inputs: layer(*inputs, mask)[0], (x, v_prev))
        through = layer(x, v_prev, mask)[0].square().sum()
    (full,) = torch.autograd.grad(through, x)

    def held(x: Tensor) -> Tensor:
        with torch.no_grad():
            q, k, v = layer.project(x.detach(), None, mask)
            m = layer.metric(q, k, v, v_prev, mask)
        q, k, v = layer.project(x, None, mask)
        keys = mask[:, None, None, :]
        attended = F.scaled_dot_product_attention(q * m, k, v, attn_mask=keys)
        return layer.proj(attended.transpose(1, 2).reshape(x.shape))

    (expected,) = torch.autograd.grad(held(x).square().sum(), x)
    stopped, _ = layer(x, v_prev, mask)
    gradients = torch.autograd.grad(stopped.square().sum(), (x, v_prev), allow_unused=True)
    assert gradients[1] is None
    assert (gradients[0] - expected).abs().max() < 1e-12
    assert (full - expected).abs().max() > 1e-6


def test_metric_gradient_switch_returns_after_an_error() -> None:
    model = deit()
    first, *layers = layers_of(model)
    with pytest.raises(RuntimeError, match="stop"), metric_gradient(model, True):
        assert all(layer.metric_gradient for layer in layers)
        raise RuntimeError("stop")
    assert [layer.metric_gradient for layer in layers] == [False, False]
    assert first.metric_gradient is None


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("way", [torch.no_grad(), torch.inference_mode(), "through"])
def test_answer_does_not_depend_on_what_is_recorded(estimator: Estimator, way: Any) -> None:
    layer, x = make(estimator=estimator, metric_seed=1), draw(2, 5, 12).float()
    v_prev = draw(2, 3, 5, 4, seed=1).float()
    out, v = layer(x, v_prev)
    with metric_gradient(layer, True) if way == "through" else way:
        again, values = layer(x, v_prev)
    assert torch.equal(out, again) and torch.equal(v, values)


def test_autograd_keeps_no_more_than_for_dot_product_attention() -> None:
    kept = []
    for kind in (DotAttention, EllipticalAttention):
        layer = kind(24, 3).requires_grad_(False)
        x, storages = draw(2, 50, 24).float().requires_grad_(), {}

        def keep(tensor: Tensor, storages: dict[int, int] = storages) -> Tensor:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out, _ = layer(x, torch.rand(2, 3, 50, 8))
        assert out.requires_grad
        kept.append(sum(storages.values()))
    assert kept[1] <= 1.02 * kept[0]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("tokens", "trained"), [(5, True), (5, False), (600, True)])
def test_training_in_half_precision_attends_alike_whatever_the_length(
    tokens: int, trained: bool, estimator: Estimator, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = make(estimator=estimator, metric_seed=1), draw(2, tokens, 12).float()
    v_prev = draw(2, 3, tokens, 4, seed=1).float()
    mask = torch.arange(tokens) < torch.tensor([[tokens], [tokens - 2]])
    exact, _ = layer(x, v_prev, mask)
    fused = Mock(wraps=F.scaled_dot_product_attention)
    monkeypatch.setattr(F, "scaled_dot_product_attention", fused)
    with torch.set_grad_enabled(trained), torch.autocast("cpu", dtype=torch.bfloat16):
        out, v = layer(x, v_prev, mask)
    assert fused.called is not (trained and tokens == 5)  # it is slow in training, see _attend
    assert out.dtype == v.dtype == torch.bfloat16
    assert (out - exact)[mask].abs().max() < 0.02 * exact.abs().max()


def test_draws_are_fresh_for_every_pass_and_sample_and_leave_the_global_generator() -> None:
    model = deit(estimator="random")
    images = torch.rand(1, 1, 12, 12).expand(2, 1, 12, 12)
    before = torch.get_rng_state()
    first, second = model(images), model(images)
    copied = copy.deepcopy(model)
    third = copied(images)
    assert torch.equal(torch.get_rng_state(), before)
    logits = torch.cat((first, second, third))
    assert all((logits[i] - logits[j]).abs().max() > 1e-6 for i in range(6) for j in range(i))
    assert is_randomized(model) and is_randomized(copied)
    assert is_randomized(pickle.loads(pickle.dumps(model)))


def test_seeded_tables_belong_to_the_layer_and_head_alone() -> None:
    model, again = deit(estimator="random", metric_seed=5), deit(estimator="random", metric_seed=5)
    other = deit(estimator="random", metric_seed=6)
    images = torch.rand(3, 1, 12, 12)
    assert torch.equal(model(images), again(images))
    assert (model(images) - other(images)).abs().max() > 1e-6
    assert model.state_dict().keys() == deit("deit_tiny").state_dict().keys()
    found = [layer.table for each in (model, other) for layer in elliptical_layers(each)]
    tables = [head for table in found for head in table[0, :, 0]]
    assert len(tables) == 2 * 2 * 2  # seeds, layers after the first, heads
    assert len({tuple(table.tolist()) for table in tables}) == len(tables)
    assert not is_randomized(model) and has_metric(model)


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("deit_tiny_elliptical", {}, [False, True, True]),
        ("deit_tiny_elliptical", {"elliptical_layers": ()}, [False, False, False]),
        ("deit_tiny_elliptical", {"elliptical_layers": (3,)}, [False, False, True]),
        ("deit_tiny_elliptical", {"depth": 1}, [False]),
        ("fan_tiny_elliptical", {}, [False, True, True]),
        ("fan_tiny", {}, [False, False, False]),
        ("lra_transformer_elliptical", {"depth": 2}, [False, True]),
        ("lra_transformer_elliptical", {"depth": 4}, [False, False, False, True]),
        ("lra_transformer_elliptical", {"depth": 1}, [False]),
        ("lra_transformer_elliptical", {"elliptical_layers": [2]}, [False, True, False]),
        ("lra_transformer_elliptical", {"elliptical": False}, [False, False, False]),
    ],
)
def test_layers_that_are_named_or_have_a_previous_one_are_elliptical(
    name: str, overrides: dict[str, Any], expected: list[bool]
) -> None:
    random = {} if name == "fan_tiny" else {"estimator": "random"}
    model = small(name, **{"depth": 3} | random | overrides)
    assert [layer.reads_values for layer in layers_of(model)] == expected
    assert has_metric(model) == is_randomized(model) == any(expected)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_lemma_1_and_proposition_1(scaling: Scaling, estimator: Estimator, seed: int) -> None:
    N, D = 6, 4
    layer = make(D, 1, scaling=scaling, estimator=estimator, metric_seed=seed).double()
    x, v_prev = 3 * draw(1, N, D, seed=seed), draw(1, 1, N, D, seed=seed + 10)
    with torch.no_grad():
        q, k, v = layer.project(x, None, None)
        m = layer.metric(q, k, v, v_prev)[0, 0, 0]
    q, k, v = q[0, 0], k[0, 0], v[0, 0]

    def weights(q: Tensor) -> Tensor:
        return attention_weights((q * m)[None, None], k[None, None], None)[0, 0]

    size = k.abs().T  # kappa_ij of EA eq. 20: a quarter of |k_ji| and all other |k_si|
    bounds = m[:, None] / math.sqrt(D) * (size.sum(1, keepdim=True) - 0.75 * size)  # (D, N)
    for query in q:
        a = weights(query[None])[0]
        jacobian = torch.func.jacrev(lambda q: weights(q[None])[0])(query)
        exact = m / math.sqrt(D) * a[:, None] * (k - a @ k)
        assert (jacobian - exact).abs().max() <= 1e-10
        assert (jacobian.abs() <= bounds.T + 1e-12).all()
        for length in (1e-3, 1.0, 10.0):
            step = length * draw(D, seed=seed + 20)
            both = weights(torch.stack((query, query + step))) @ v
            assert (both[1] - both[0]).norm() <= bounds.norm(dim=0) @ v.norm(dim=1) * step.norm()

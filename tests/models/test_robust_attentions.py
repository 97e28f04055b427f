"""The robust mechanisms of attention: formulas, limits, padding, gradients, graphs."""

import itertools
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import models
from export.onnx import to_onnx
from export.torch_files import to_torchscript
from models.attention.base import Attention
from models.attention.catalog import make_attention, make_options
from models.attention.dot import DotAttention
from models.attention.fourier import LogKernel, log_kernel
from models.attention.kde import WeightedKdeAttention
from models.attention.spkde import onto_simplex
from models.layers.block import Block
from runtimes.torchscript import load_torchscript
from tests.models.plain_robust_attentions import ROBUST_HEADS, plain_robust_attention
from tests.models.small import draw, small

# Several steps, blocks that some of the sequences below do not fill, thresholds that matter.
OPTIONS: dict[str, dict[str, Any]] = {
    "kde": {"width": 0.5},
    "mom": {"blocks": 3},
    "rkde": {"threshold": 0.3, "steps": 2},
    "mgk": {"sets": 3},
    "fourier": {},
    "spkde": {"outliers": 0.3, "steps": 5},
}
MAPPED = [name for name in OPTIONS if name not in ("rkde", "spkde")]
HOLES = torch.tensor([[1] * 8, [0, 1, 1, 0, 1, 0, 1, 1], [0] * 6 + [1, 1], [1] + [0] * 7]).bool()
every_mechanism = pytest.mark.parametrize("name", OPTIONS)


def make(name: str, **options: Any) -> Attention:
    """A layer in float64 away from its first weights."""
    torch.manual_seed(0)
    layer = make_attention(8, 2, attention=name, options=make_options(name, options)).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return layer


def same_weights(layer: Attention, other: Attention) -> Attention:
    other.load_state_dict(layer.state_dict(), strict=False)
    return other


def test_every_robust_mechanism_is_in_the_catalog() -> None:
    assert OPTIONS.keys() == ROBUST_HEADS.keys() <= set(models.attentions())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *OPTIONS.items(),
        ("mom", {"blocks": 4}),
        ("rkde", {"loss": "hampel", "threshold": 0.3}),
        ("rkde", {"loss": "hampel", "threshold": 0.1}),
        ("mgk", {"sets": 1}),
        ("spkde", {"outliers": 0.6, "steps": 20, "width": 0.2}),
    ],
)
def test_attention_is_the_formula_whatever_the_padding_holds(
    name: str, options: dict[str, Any]
) -> None:
    layer, x = make(name, **options), draw(4, 8, 8)
    w = {key: value.detach() for key, value in layer.state_dict().items()}
    chosen = make_options(name, options)
    plain = [
        plain_robust_attention(name, row[real], w, 2, chosen)
        for row, real in zip(x, HOLES, strict=True)
    ]
    for rubbish in (0.0, 1e30):
        out, _ = layer(x.masked_fill(~HOLES[:, :, None], rubbish), None, HOLES)
        assert out.isfinite().all()
        for sample, real, expected in zip(out, HOLES, plain, strict=True):
            assert (sample[real] - expected).abs().max() <= 1e-10
    assert (layer(x[:1])[0][0] - plain[0]).abs().max() <= 1e-10


@pytest.mark.parametrize("name", MAPPED)
def test_maps_are_the_weights_of_the_values(name: str) -> None:
    layer, x = make(name, **OPTIONS[name]), draw(4, 8, 8)
    attn = layer.attention_map(x, None, HOLES)
    assert (attn.sum(-1) - 1).abs().max() <= 1e-12
    assert (attn * ~HOLES[:, None, None]).abs().max() == 0
    v = layer.project(x, None, None)[2]
    expected = layer.proj((attn @ v).transpose(1, 2).flatten(2))
    assert (layer(x, None, HOLES)[0] - expected).abs().max() <= 1e-12


@pytest.mark.parametrize("name", ["rkde", "spkde"])
def test_weights_that_do_not_sum_to_one_are_no_map(name: str) -> None:
    with pytest.raises(ValueError, match="its weights do not sum to 1"):
        make(name).attention_map(draw(1, 5, 8))


@pytest.mark.parametrize(
    ("name", "options"),
    [("mom", {"blocks": 1}), ("rkde", {"threshold": 1e9}), ("spkde", {"outliers": 0.0})],
)
def test_limits_are_kernel_regression(name: str, options: dict[str, Any]) -> None:
    layer, x = make(name, **options), draw(4, 8, 8)
    out, expected = (each(x, None, HOLES)[0] for each in (layer, same_weights(layer, make("kde"))))
    assert (out - expected)[HOLES].abs().max() <= 1e-12


def test_kernel_regression_over_keys_of_length_one_is_dot_product_attention() -> None:
    layer, x = make("kde"), draw(2, 5, 8)
    q, k, v = layer.project(x, None, None)
    expected = DotAttention(8, 2).attend(q, k, v, None)
    assert (k.square().sum(-1) - 1).abs().max() <= 1e-12
    assert (layer.attend(q, k, v, None) - expected).abs().max() <= 1e-12


def test_key_sets_that_agree_are_one() -> None:
    one, two, x = make("mgk", sets=1), make("mgk"), draw(2, 6, 8)
    with torch.no_grad():
        same_weights(one, two.__class__(8, 2, options=make_options("mgk", {"sets": 1})))
        for key in ("qkv", "proj"):
            two.get_submodule(key).load_state_dict(one.get_submodule(key).state_dict())
        two.get_parameter("keys.weight").copy_(one.get_parameter("qkv.weight")[8:16])
        two.get_parameter("keys.bias").copy_(one.get_parameter("qkv.bias")[8:16])
        two.get_parameter("log_widths").copy_(one.get_parameter("log_widths").expand(-1, 2))
    assert (one(x)[0] - two(x)[0]).abs().max() <= 1e-12


def test_the_median_ignores_an_outlier_in_one_block() -> None:
    layer = make("mom", blocks=3)
    q, k, v = (draw(1, 1, 9, 4, seed=seed) for seed in range(3))
    k = nn.functional.normalize(k, dim=-1)
    before, chosen = layer.attend(q, k, v, None), layer.weights(q, k, None)[..., 4] > 0
    v[:, :, 4] = 1e6  # a value of the second block
    after = layer.attend(q, k, v, None)
    assert 0 < chosen.sum() < 9 and torch.equal(before[~chosen], after[~chosen])


def test_a_key_far_from_all_others_gets_the_least_share() -> None:
    angles = torch.tensor([0.0, 0.1, -0.1, 0.05, 3.0], dtype=torch.float64)
    k = torch.stack((angles.cos(), angles.sin()), dim=-1)
    gram, real = (k @ k.T - 1).exp()[None, None], torch.ones(1, 1, 5, dtype=torch.float64)
    for name, options in (("rkde", {}), ("rkde", {"loss": "hampel"}), ("spkde", {"outliers": 0.3})):
        layer = make(name, **options)
        assert isinstance(layer, WeightedKdeAttention)
        shares = layer.shares(gram, real)[0, 0]
        assert shares.argmin() == 4 and shares[4] < 0.7 * shares[:4].min(), name
        assert shares.sum().item() == pytest.approx(1)


def exact(gram: Tensor, beta: float) -> Tensor:
    """The minimum of a' K a / 2 - beta a' K 1 / n on the simplex, from all sets of support."""
    n, best = len(gram), (torch.inf, gram.new_zeros(len(gram)))
    linear = beta * gram.mean(1)
    for size in range(1, n + 1):
        for support in itertools.combinations(range(n), size):
            s = list(support)
            system = gram.new_zeros(size + 1, size + 1)
            system[:size, :size], system[size, :size], system[:size, size] = gram[s][:, s], 1, 1
            a = gram.new_zeros(n)
            a[s] = torch.linalg.solve(system, torch.cat([linear[s], gram.new_ones(1)]))[:size]
            value = float(a @ gram @ a / 2 - linear @ a)
            if a.min() >= 0 and value < best[0]:
                best = (value, a)
    return best[1]


def test_steps_lead_to_the_solution_of_the_quadratic_programme() -> None:
    x, real = draw(7, 3), torch.ones(1, 1, 7, dtype=torch.float64)
    gram = (-torch.cdist(x, x).square() / 4).exp()
    expected = 0.99 * exact(gram, 1 / 0.3) + 0.01 / 7
    assert (expected == 0.01 / 7).any()  # some key is projected away
    errors = []
    for steps in (5, 20, 80, 320):
        layer = make("spkde", outliers=0.7, steps=steps)
        assert isinstance(layer, WeightedKdeAttention)
        errors.append(float((layer.shares(gram[None, None], real) - expected).abs().max()))
    assert errors == sorted(errors, reverse=True) and errors[-1] <= 1e-6


def test_projection_is_the_nearest_point_on_the_simplex() -> None:
    x, real = 2 * draw(4, 8), HOLES[:, None].double()
    found = onto_simplex(x[:, None], real)[:, 0]
    assert (found.sum(1) - 1).abs().max() <= 1e-12 and (found * ~HOLES).abs().max() == 0
    for row, near, mask in zip(x, found, HOLES, strict=True):
        inside = near[mask] > 0
        left = row[mask] - near[mask]
        assert left[inside].max() - left[inside].min() <= 1e-12
        assert (left[~inside] <= left[inside].max() + 1e-12).all()


def test_logarithms_of_the_kernel_are_right_near_zero_and_near_its_roots() -> None:
    x = torch.tensor([0.0, 1e-9, 1e-4, 0.0999, 0.1001, 1.0, 3.1416, 50.0], dtype=torch.float64)
    q = x[:, None].clone().requires_grad_()
    found = log_kernel(q, q.new_zeros(1, 1))[:, 0]
    expected = [0.0, *(abs(float(torch.sin(e) / e)) for e in x[1:])]
    logs = torch.tensor(expected[1:], dtype=torch.float64).log()
    assert found[0] == 0 and (found[1:] - logs).abs().max() <= 1e-10
    slope, one = 1 / x[1:].tan() - 1 / x[1:], q.new_zeros(1, 1)
    for logs in (found, LogKernel.apply(q, one)):
        (gradient,) = torch.autograd.grad(logs.sum(), q)
        errors = (gradient[1:, 0] - slope).abs() / slope.abs().clamp_min(1)
        assert gradient[0] == 0 and errors[1:].max() <= 1e-8  # 1 / x - 1 / x at 1e-9 is no guide


def test_the_kernel_can_be_derived_twice() -> None:
    q, k = (draw(1, 3, 2, seed=seed).requires_grad_() for seed in range(2))
    assert torch.autograd.gradgradcheck(LogKernel.apply, (q, k), fast_mode=True)


@every_mechanism
def test_gradients_are_the_derivatives(name: str) -> None:
    layer, x = make(name, **OPTIONS[name]), draw(1, 4, 8).requires_grad_()
    mask = torch.tensor([[True, False, True, True]])
    assert torch.autograd.gradcheck(lambda x: layer(x, None, mask)[0][mask], x, fast_mode=True)


@every_mechanism
@pytest.mark.parametrize("family", ["deit_tiny", "fan_tiny", "lra_transformer"])
def test_transformers_take_it_and_every_parameter_has_a_gradient(family: str, name: str) -> None:
    model = small(family, attention=name, **OPTIONS[name])
    tokens = torch.tensor([[1, 2, 3, 4, 5], [3, 2, 1, 0, 0]])
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    images = (torch.rand(2, 3, 12, 12).double(),)
    logits = model(*(images if family.endswith("tiny") else (tokens, mask)))
    logits.square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key


@every_mechanism
def test_nothing_overflows_where_scores_are_large(name: str) -> None:
    layer, x = make(name, **OPTIONS[name]).float(), 100 * draw(2, 8, 8).float()
    for given in (x, torch.zeros_like(x), torch.ones_like(x), 1e-6 * x):
        given = given.clone().requires_grad_()
        out, _ = layer(given, None, HOLES[:2])
        (gradient,) = torch.autograd.grad(out.sum(), given)
        assert out.isfinite().all() and gradient.isfinite().all()


@every_mechanism
def test_half_precision_comes_close(name: str) -> None:
    layer, x = make(name, **OPTIONS[name]).float(), draw(2, 6, 8).float()
    if name == "mom":  # rounding may choose another block
        layer = same_weights(layer, make(name, blocks=1).float())
    expected = layer(x, None, HOLES[:2, :6])[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = layer(x, None, HOLES[:2, :6])
        out.sum().backward()
    assert (out - expected).abs().max() <= 0.03 * expected.abs().max()


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("kde", {"width": 0.0}, "width must be positive, got 0.0"),
        ("mom", {"blocks": 0}, "blocks must lie in 1..1000, got 0"),
        ("rkde", {"loss": "tukey"}, "loss must be"),
        ("rkde", {"threshold": -1.0}, "threshold must be positive, got -1.0"),
        ("rkde", {"blocks": 3}, "'blocks' is an option of mom, not of"),
        ("mgk", {"sets": 0}, "sets must lie in 1..64, got 0"),
        ("fourier", {"width": 1.0}, "'width' is an option of kde"),
        ("spkde", {"outliers": 1.0}, "outliers must lie in"),
    ],
)
def test_options_against_the_rules_are_refused(
    name: str, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        models.config("deit_tiny", attention=name, **overrides)


@pytest.mark.slow
def test_graphs_of_all_serve_every_batch_length_and_padding() -> None:
    model = small("lra_transformer", seq_len=12)
    blocks = [
        Block(16, 2, 32, attention=name, options=make_options(name, chosen))
        for name, chosen in OPTIONS.items()
    ]
    model.blocks = nn.ModuleList(blocks)
    model.float().eval()
    example = torch.zeros(2, 8, dtype=torch.long), torch.ones(2, 8, dtype=torch.bool)
    session = onnxruntime.InferenceSession(to_onnx(model, example, {}))
    script = load_torchscript(to_torchscript(model, example))
    for size, length, real in ((1, 12, 12), (3, 5, 2), (5, 9, 9), (2, 7, 1)):
        tokens = torch.randint(0, 11, (size, length), generator=torch.Generator().manual_seed(0))
        mask = (torch.arange(length) < real).expand(size, -1).clone()
        mask[0] = True
        feed = {"tokens": tokens.numpy(), "mask": mask.numpy()}
        found = torch.from_numpy(session.run(["logits"], feed)[0])
        expected = model(tokens, mask)
        assert (found - expected).abs().max() <= 1e-4
        assert (script(tokens, mask) - expected).abs().max() <= 1e-4

"""Every mechanism of attention: its formula, what it approximates, invariances, graphs."""

import dataclasses
from itertools import pairwise
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor

import models
from export.onnx import to_onnx
from export.torch_files import to_torchscript
from models.attention.base import Attention, Place
from models.attention.catalog import ATTENTIONS, make_attention, make_options
from models.attention.dot import DotAttention
from models.attention.performer import PerformerAttention
from runtimes.torchscript import load_torchscript
from tests.models.plain_attentions import HEADS, plain_attention
from tests.models.plain_robust_attentions import ROBUST_HEADS
from tests.models.small import draw, small

# Sizes at which every pattern is smaller than eight tokens, and larger than two.
OPTIONS: dict[str, dict[str, Any]] = {
    "bigbird": {"block": 1, "random_blocks": 1},
    "dot": {},
    "informer": {"factor": 2},
    "linformer": {"rank": 3},
    "longformer": {"window": 4},
    "nystromformer": {"landmarks": 3, "kernel": 3},
    "performer": {"features": 6},
    "reformer": {"chunk": 2},
    "skyformer": {"landmarks": 5},
    "synthesizer": {},
}
MAPPED = [name for name in OPTIONS if not ATTENTIONS[name].no_map]
HOLES = torch.tensor([[1] * 8, [0, 1, 1, 0, 1, 0, 1, 1], [0] * 6 + [1, 1], [1] + [0] * 7]).bool()
every_mechanism = pytest.mark.parametrize("name", OPTIONS)


def make(name: str, *, embed_dim: int = 8, length: int = 9, **options: Any) -> Attention:
    """A layer in float64 away from its first weights."""
    torch.manual_seed(0)
    chosen = make_options(name, OPTIONS[name] | options)
    layer = make_attention(
        embed_dim, 2, attention=name, options=chosen, place=Place(length=length)
    ).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return layer


def test_every_mechanism_stands_in_the_tables() -> None:
    elsewhere = {"elliptical", *ROBUST_HEADS}
    assert OPTIONS.keys() == HEADS.keys() == ATTENTIONS.keys() - elsewhere
    assert models.attentions() == list(ATTENTIONS)


@every_mechanism
@pytest.mark.parametrize("rubbish", [None, 0.0, 1e30])
def test_attention_is_the_formula_whatever_the_padding_holds(
    name: str, rubbish: float | None
) -> None:
    layer, x = make(name), draw(4, 8, 8)
    w = {key: value.detach() for key, value in layer.state_dict().items()}
    w |= dict(layer.named_buffers())
    options = make_options(name, OPTIONS[name])
    mask = None if rubbish is None else HOLES
    given = x if mask is None else x.masked_fill(~mask[:, :, None], rubbish or 0.0)
    out, _ = layer(given, None, mask)
    everything = torch.ones_like(HOLES) if mask is None else mask
    for sample, row, real in zip(out, x, everything, strict=True):
        expected = plain_attention(name, row[real], w, 2, options)
        assert (sample[real] - expected).abs().max() <= 1e-10
    assert out.isfinite().all()


@pytest.mark.parametrize("name", MAPPED)
def test_maps_are_the_weights_of_the_values(name: str) -> None:
    layer, x = make(name), draw(4, 8, 8)
    attn = layer.attention_map(x, None, HOLES)
    assert (attn.sum(-1)[HOLES[:, None].expand(-1, 2, -1)] - 1).abs().max() <= 1e-12
    assert (attn * ~HOLES[:, None, None]).abs().max() == 0
    rows = slice(1, None) if name == "longformer" else slice(None)  # its first has other values
    v = layer.project(x, None, None)[2][..., :4]
    expected = layer.proj((layer.attention_map(x) @ v).transpose(1, 2).flatten(2))
    assert (layer(x)[0] - expected)[:, rows].abs().max() <= 1e-12


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in MAPPED])
def test_what_has_no_map_says_why(name: str) -> None:
    with pytest.raises(ValueError, match="must have N x N weights to show them: .*ormer"):
        make(name).attention_map(draw(1, 5, 8))


def error(name: str, x: Tensor, **options: Any) -> float:
    """How far a mechanism is from softmax attention with the same maps, on average."""
    layer, exact = make(name, **options), DotAttention(8, 2).double()
    exact.load_state_dict(layer.state_dict(), strict=False)
    if name == "nystromformer":
        torch.nn.init.zeros_(layer.get_parameter("conv.weight"))
    return float((layer(x)[0] - exact(x)[0]).detach().norm() / exact(x)[0].detach().norm())


def test_performer_comes_closer_to_softmax_with_more_features() -> None:
    x = 0.3 * draw(2, 16, 8)
    errors = [
        sum(error("performer", x, features=count, seed=seed) for seed in range(4)) / 4
        for count in (4, 32, 256, 2048)
    ]
    assert all(b < 0.6 * a for a, b in pairwise(errors)) and errors[-1] < 0.01


def test_nystromformer_comes_closer_to_softmax_with_more_landmarks() -> None:
    x = draw(2, 8, 8).repeat_interleave(4, dim=1) + 0.05 * draw(2, 32, 8, seed=1)
    errors = [error("nystromformer", x, landmarks=m, steps=20) for m in (2, 4, 8, 32)]
    assert errors == sorted(errors, reverse=True) and errors[2] < 0.05 and errors[3] < 1e-12


def test_skyformer_comes_closer_to_its_kernel_with_more_landmarks() -> None:
    x = draw(2, 12, 8)

    def attended(landmarks: int) -> Tensor:
        layer = make("skyformer", length=12, landmarks=landmarks, steps=40, gamma=1e-9)
        return layer.attend(*layer.project(x, None, None), None).detach()

    q, k, v = (each.detach() for each in make("skyformer").project(x, None, None))
    exact = (torch.cdist(q, k).square() / -4).exp() @ v  # D is 4
    errors = [float((attended(m) - exact).norm() / exact.norm()) for m in (2, 8, 16, 24)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-6


def test_nothing_overflows_where_scores_are_large() -> None:
    for name in OPTIONS:
        layer, x = make(name).float(), 100 * draw(2, 8, 8).float()
        x.requires_grad_()
        out, _ = layer(x, None, HOLES[:2])
        (gradient,) = torch.autograd.grad(out.sum(), x)
        assert out.isfinite().all() and gradient.isfinite().all(), name


@every_mechanism
def test_bfloat16_autocast_comes_close_and_trains(name: str) -> None:
    layer, x = make(name).float(), draw(4, 8, 8).float()
    expected = layer(x, None, HOLES)[0][HOLES]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x, None, HOLES)[0][HOLES]
        out.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    assert (out - expected).abs().max() <= 0.05 * expected.abs().max()


@pytest.mark.parametrize(
    "name", ["bigbird", "informer", "linformer", "reformer", "skyformer", "synthesizer"]
)
def test_more_tokens_than_it_was_built_for_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} attention was built for at most 9 .* got 10"):
        make(name)(draw(1, 10, 8))
    with pytest.raises(ValueError, match=f"must have a length for {name} attention"):
        make_attention(8, 2, attention=name)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("bigbird", {"block": 0}, "block must lie in 1..65536, got 0"),
        ("informer", {"factor": 0}, "factor must lie in 1..1000, got 0"),
        ("reformer", {"hashes": 0}, "hashes must lie in 1..64, got 0"),
        ("linformer", {"rank": 0}, "rank must lie in 1..8192, got 0"),
        ("performer", {"feature": 8}, "did you mean 'features'"),
        (
            "performer",
            {"landmarks": 8},
            "option of nystromformer and skyformer, not of",
        ),
        ("nystromformer", {"kernel": 4}, "kernel must be odd, got 4"),
        ("longformer", {"window": 5}, "window must be even, got 5"),
        ("performer", {"seed": -1}, "seed must lie in 0..4294967295, got -1"),
    ],
)
def test_options_against_the_rules_are_refused(
    name: str, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        models.config("lra_transformer", attention=name, **overrides)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_whole_number_among_the_options_has_a_largest(name: str) -> None:
    for option in dataclasses.fields(ATTENTIONS[name].Options):
        if "int" in str(option.type):
            with pytest.raises(ValueError, match=rf"^{option.name} must lie in \d+\.\.\d+, got 1"):
                make_options(name, {option.name: 10**10})


@every_mechanism
@pytest.mark.parametrize("family", ["deit_tiny", "fan_tiny", "transformer_orthogonal"])
def test_other_transformers_take_it_too(family: str, name: str) -> None:
    model = small(family, attention=name, **OPTIONS[name])
    images = family.endswith("tiny")
    given = torch.rand(2, 3, 12, 12).double() if images else torch.tensor([[1, 2, 3]])
    logits = model(given)
    assert logits.isfinite().all() and (name == "dot" or layers_differ(model))
    logits.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def layers_differ(model: Any) -> bool:
    first, second = (block.attn for block in model.blocks)
    if not isinstance(first, PerformerAttention):
        return True
    return not torch.equal(first.features, second.features)


@pytest.mark.slow
@every_mechanism
def test_graphs_serve_every_batch_length_and_padding(name: str) -> None:
    model = small("lra_transformer", attention=name, **OPTIONS[name], seq_len=12).float()
    example = torch.zeros(2, 8, dtype=torch.long), torch.ones(2, 8, dtype=torch.bool)
    session = onnxruntime.InferenceSession(to_onnx(model, example, {}))
    script = load_torchscript(to_torchscript(model, example))
    for size, length, real in ((1, 12, 12), (3, 5, 2), (5, 9, 9), (2, 7, 1)):
        tokens = torch.randint(0, 11, (size, length))
        mask = (torch.arange(length) < real).expand(size, -1).clone()
        mask[0] = True
        feed = {"tokens": tokens.numpy(), "mask": mask.numpy()}
        found = torch.from_numpy(session.run(["logits"], feed)[0])
        expected = model(tokens, mask)
        assert (found - expected).abs().max() <= 1e-4
        assert (script(tokens, mask) - expected).abs().max() <= 1e-4


def test_half_of_a_window_is_seen_on_each_side() -> None:
    layer = make("longformer", length=40, window=6)
    attn = layer.attention_map(draw(1, 20, 8))[0, 0, 1:]
    i, j = torch.meshgrid(torch.arange(1, 20), torch.arange(20), indexing="ij")
    assert torch.equal(attn > 0, ((i - j).abs() <= 3) | (j == 0))


@pytest.mark.parametrize("lengths", [(25, 24), (15, 14), (7, 1)])
def test_blocks_of_several_tokens_are_the_formula(lengths: tuple[int, int]) -> None:
    options = {"block": 3, "random_blocks": 2}
    layer, x = make("bigbird", length=30, **options), draw(2, 30, 8)
    mask = torch.arange(30) >= 30 - torch.tensor(lengths)[:, None]
    w = {key: value.detach() for key, value in layer.state_dict().items()}
    w |= dict(layer.named_buffers())
    for sample, row, real in zip(layer(x, None, mask)[0], x, mask, strict=True):
        expected = plain_attention("bigbird", row[real], w, 2, make_options("bigbird", options))
        assert (sample[real] - expected).abs().max() <= 1e-10


def test_blocks_see_both_ends_their_neighbors_and_random_blocks() -> None:
    layer = make("bigbird", length=80, block=2, random_blocks=3)
    attn = layer.attention_map(draw(1, 39, 8))[0] > 0
    seen = attn[:, ::2, ::2]  # (H, 20, 20), of blocks
    assert torch.equal(attn, seen.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, :39, :39])
    assert seen[:, [0, -1]].all() and seen[:, :, [0, -1]].all()
    assert all(seen.diagonal(offset, 1, 2).all() for offset in (-1, 0, 1))
    assert torch.equal(seen[0].sum(1), torch.tensor([20, 7, *[8] * 16, 7, 20]))
    assert not torch.equal(seen[0], seen[1])  # every head has others


def test_few_blocks_are_softmax_attention() -> None:
    layer, x = make("bigbird", length=20, block=2, random_blocks=1), draw(2, 20, 8)
    exact = DotAttention(8, 2).double()
    exact.load_state_dict(layer.state_dict())
    for given, mask in ((x[:, :10], None), (x, torch.arange(20) < torch.tensor([[20], [10]]))):
        out, expected = (each(given, None, mask)[0][1, :10] for each in (layer, exact))
        assert (out - expected).abs().max() <= 1e-12


def test_segments_of_equal_length_are_the_means_of_the_plain_form() -> None:
    layer, x = make("nystromformer", landmarks=4), draw(2, 8, 8)
    everything = torch.ones(2, 8, dtype=torch.bool)
    assert (layer(x)[0] - layer(x, None, everything)[0]).abs().max() <= 1e-12

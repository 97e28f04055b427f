import dataclasses
import math
import threading
from unittest.mock import Mock

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import models
from models.analysis import diagnostics
from models.analysis.diagnostics import Diagnostics, diagnose
from models.analysis.observation import observe
from models.attention.base import Attention
from models.attention.class_attention import ClassAttention
from models.attention.metric import attention_weights
from models.inference.fold import fold
from tests.models.small import draw, padding, small

TOLERANCE = 1e-10
# The other sizes are the same models, see test_every_model; a bag has no layers.
every_name = pytest.mark.parametrize(
    "name",
    [
        name
        for name in models.names()
        if "_small" not in name and "_base" not in name and name != "bag_of_tokens"
    ],
)
LENGTHS = [6, 4, 1]  # real tokens of the three samples


def tiny(name: str, **overrides: object) -> nn.Module:
    return small(name, **{"depth": 3} | overrides)


def inputs_of(model: nn.Module, count: int = 3) -> tuple[Tensor, Tensor | None]:
    """Images, or tokens of different lengths with their mask."""
    if hasattr(model.config, "img_size"):
        return draw(count, 3, 12, 12).sigmoid(), None
    tokens = torch.randint(11, (count, 6), generator=torch.Generator().manual_seed(0))
    return tokens, padding(LENGTHS[:count], 6)


def figures(diagnosis: Diagnostics) -> list[Tensor]:
    fields = [getattr(diagnosis, field.name) for field in dataclasses.fields(Diagnostics)]
    tensors = [field for field in fields if isinstance(field, Tensor)]
    by_layer = [*diagnosis.metrics, *diagnosis.key_perturbations]
    return tensors + [figure for figure in by_layer if figure is not None]


@every_name
def test_every_model_can_be_diagnosed(name: str) -> None:
    model = tiny(name)
    inputs, mask = inputs_of(model)
    if mask is None:
        inputs = (inputs.requires_grad_() * 1.01).clamp(0, 1)  # as of an attack, in a graph
    found = diagnose(model, inputs, mask)
    logits = model(inputs) if mask is None else model(inputs, mask)
    assert torch.equal(found.logits, logits.detach())
    assert all(figure.isfinite().all() for figure in figures(found))
    assert not any(figure.requires_grad for figure in figures(found))
    per_layer = [found.activation_factor, found.total_factor, found.entropy]
    assert {figure.shape for figure in [*per_layer, found.cosine_similarity]} == {(3, 3)}
    if name.startswith("transject"):
        assert found.rollout is None and found.head_redundancy is None
        assert found.head_entropy is None and found.key_perturbations == (None, None, None)
        assert found.expert_weights is not None and found.expert_entropy is not None
        assert found.expert_weights.shape == found.expert_entropy.shape == (3, 3, 3)
    else:
        assert found.expert_weights is None and found.expert_entropy is None
        assert found.head_redundancy is not None and found.head_redundancy.shape == (3, 3)
        assert found.head_entropy is not None and found.head_entropy.shape == (3, 3)
        check_maps(model, inputs, mask)
        assert found.rollout is not None
        assert found.rollout.shape == ((3, 3, 3) if mask is None else (3, 6))


@every_name
def test_figures_depend_on_their_own_real_tokens_only(name: str) -> None:
    model = tiny(name)
    inputs, mask = inputs_of(model)
    together = diagnose(model, inputs, mask)
    for index in range(len(inputs)):
        own = inputs[index : index + 1]
        if mask is not None:
            own = own[:, : LENGTHS[index]]
        for alone, batch in zip(figures(diagnose(model, own)), figures(together), strict=True):
            row = batch[index : index + 1]
            if mask is not None and batch is together.rollout:
                assert (row[:, LENGTHS[index] :] == 0).all()
            # Where each token has a value, logits or rollout, those of padding mean nothing.
            row = row[:, : alone.shape[1]] if alone.ndim > 1 else row
            assert (alone - row).abs().max() <= TOLERANCE


@pytest.mark.parametrize("estimator", ["difference", "consistent", "random"])
def test_attention_maps_and_metrics_of_each_estimator_are_those_of_the_run(estimator: str) -> None:
    model = tiny("lra_transformer_elliptical", estimator=estimator, pooling="cls")
    inputs, mask = inputs_of(model)
    check_maps(model, inputs, mask)
    for layer in observe(model, inputs, mask).layers:
        attention, (x, _, keys) = layer.mixer.module, layer.mixer.arguments
        assert isinstance(attention, Attention)
        q, k, _ = attention.project(x, None, keys)
        m = layer.metric()
        assert (m is None) == (not attention.reads_values)
        expected = attention_weights(q if m is None else q * m[:, :, None], k, keys)
        found = layer.attention_map()
        assert found is not None and (found - expected).abs().max() <= TOLERANCE


def check_maps(model: nn.Module, inputs: Tensor, mask: Tensor | None) -> None:
    """The maps, multiplied with the values of the run, give what the run's attention gave."""
    for layer in observe(model, inputs, mask).layers:
        attention, attn = layer.mixer.module, layer.attention_map()
        assert isinstance(attention, Attention) and attn is not None
        attended, v = layer.mixer.result
        expected = attention.proj((attn @ v).transpose(1, 2).flatten(2))
        assert (attended - expected).abs().max() <= TOLERANCE
        assert (attn.sum(-1) - 1).abs().max() <= TOLERANCE


def through(mixings: list[Tensor]) -> Tensor:
    """What each token draws from the input: the product of the layers, residual paths counted."""
    total = torch.eye(mixings[0].shape[-1], dtype=torch.float64)
    for mixing in mixings:
        total = (mixing + torch.eye(len(total[-1]))) / 2 @ total
    return total


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("deit_tiny", {}),
        ("deit_tiny", {"distilled": True}),
        ("transformer", {}),
        ("segmenter_tiny", {}),
    ],
)
def test_rollout_is_the_mean_over_the_tokens_that_the_head_reads(
    name: str, overrides: dict[str, bool]
) -> None:
    model = tiny(name, **overrides)
    inputs, mask = inputs_of(model)
    maps = [layer.attention_map() for layer in observe(model, inputs, mask).layers]
    rows = through([attn.mean(1) for attn in maps if attn is not None])
    found = diagnose(model, inputs, mask).rollout
    assert found is not None
    if name == "transformer":
        expected = torch.stack([rows[b, :length].mean(0) for b, length in enumerate(LENGTHS)])
        assert (found.sum(1) - 1).abs().max() <= TOLERANCE
    elif name == "segmenter_tiny":  # its decoder reads the patches
        expected = rows[:, 1:, 1:].mean(1).unflatten(1, (3, 3))
    else:
        classes = 2 if overrides else 1
        expected = rows[:, :classes, classes:].mean(1).unflatten(1, (3, 3))
    assert found.shape == expected.shape and (found - expected).abs().max() <= TOLERANCE


def test_rollout_through_class_attention_is_the_product_of_all_layers() -> None:
    model = tiny("fan_tiny_elliptical")
    images, _ = inputs_of(model)
    taken: list[tuple[ClassAttention, Tensor, Tensor]] = []
    for layer in model.modules():
        if isinstance(layer, ClassAttention):
            layer.register_forward_hook(lambda *call: taken.append((call[0], call[1][0], call[2])))
    seen = observe(model, images)
    assert len(seen.class_maps) == len(taken) == 2
    for (layer, x, out), attn in zip(taken, seen.class_maps, strict=True):
        assert attn.shape == (3, 2, 1, 10) and (attn.sum(-1) - 1).abs().max() <= TOLERANCE
        v = layer.v(x).unflatten(2, (2, 8)).transpose(1, 2)
        expected = layer.proj((attn @ v).transpose(1, 2).flatten(2))
        assert (out - expected).abs().max() <= TOLERANCE
    mixings = []  # of the class token, which is not yet there, and the patches
    for layer in seen.layers:
        attn = layer.attention_map()
        assert attn is not None
        mixings.append(torch.eye(10, dtype=torch.float64).repeat(3, 1, 1))
        mixings[-1][:, 1:, 1:] = attn.mean(1)
    for attn in seen.class_maps:
        mixings.append(torch.eye(10, dtype=torch.float64).repeat(3, 1, 1))
        mixings[-1][:, :1] = attn.mean(1)
    found = diagnose(model, images).rollout
    assert found is not None
    assert (found.flatten(1) - through(mixings)[:, 0, 1:]).abs().max() <= TOLERANCE


def factor_of(x: Tensor, out: Tensor) -> float:
    """How much the distances between different tokens (N, C) are stretched."""
    before, after = F.pdist(x), F.pdist(out)
    return float((after / before)[before > 0].mean()) if before.any() else 1.0


@pytest.mark.parametrize("name", ["deit_tiny", "lra_transformer"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, TOLERANCE), (torch.bfloat16, 1e-4)]
)
def test_factors_are_the_formula_over_real_tokens(
    name: str, dtype: torch.dtype, tolerance: float
) -> None:
    model = tiny(name).to(dtype)
    inputs, mask = inputs_of(model)
    inputs = inputs.to(dtype) if mask is None else inputs
    found, layers = diagnose(model, inputs, mask), observe(model, inputs, mask).layers
    for b in range(3):
        real = slice(None) if mask is None else mask[b]
        first = layers[0].inputs[b, real].double()
        for index, layer in enumerate(layers):
            before, after = layer.inputs[b, real].double(), layer.outputs[b, real].double()
            step, total = found.activation_factor[b, index], found.total_factor[b, index]
            assert abs(step - factor_of(before, after)) <= tolerance
            assert abs(total - factor_of(first, after)) <= tolerance


def test_equal_tokens_have_no_factor() -> None:
    model = tiny("lra_transformer", depth=1)
    nn.init.zeros_(model.get_parameter("pos_embed"))
    tokens = torch.tensor([[3, 3, 5, 7], [3, 3, 3, 3]])
    found, (layer,) = diagnose(model, tokens), observe(model, tokens).layers
    for factor in (found.activation_factor, found.total_factor):
        assert abs(factor[0, 0] - factor_of(layer.inputs[0], layer.outputs[0])) <= TOLERANCE
        assert factor[1, 0] == 1


def test_metrics_are_those_of_the_values_of_the_layers() -> None:
    model = tiny("deit_tiny_elliptical")
    images, _ = inputs_of(model)
    found, layers = diagnose(model, images), observe(model, images).layers
    assert found.metrics[0] is None
    for before, layer, m in zip(layers, layers[1:], found.metrics[1:], strict=False):
        change = (layer.mixer.result[1] - before.mixer.result[1]).abs().mean(2)  # (S, H, D)
        expected = change / change.amax(-1, keepdim=True)
        assert m is not None and (m - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("attention", ["elliptical", "longformer", "informer", "synthesizer"])
def test_head_figures_are_those_of_what_the_heads_gave(attention: str) -> None:
    model, (tokens, mask) = (
        tiny("lra_transformer", attention=attention),
        inputs_of(tiny("transformer")),
    )
    assert mask is not None
    mask[0, 0], mask[1, 5] = False, True  # padding anywhere
    found, layers = diagnose(model, tokens, mask), observe(model, tokens, mask).layers
    assert found.head_entropy is not None
    for index, layer in enumerate(layers):
        given, attended = layer.heads(), layer.mixer.result[0]
        assert given is not None and isinstance(layer.mixer.module, Attention)
        together = layer.mixer.module.proj(given.transpose(1, 2).flatten(2))
        assert (together - attended)[mask].abs().max() <= TOLERANCE
        for b in range(3):
            heads = given[b, :, mask[b]].detach().numpy()
            expected = scipy.stats.differential_entropy(heads, axis=-1, method="vasicek").mean()
            assert abs(float(found.head_entropy[b, index]) - expected) <= TOLERANCE
    assert found.key_perturbations[0] is None
    for before, layer, change in zip(layers, layers[1:], found.key_perturbations[1:], strict=False):
        if attention == "synthesizer":
            assert change is None and layer.keys() is None
            continue
        old, new = (_keys(each.mixer.module, each.mixer.arguments[0]) for each in (before, layer))
        expected = [(new - old)[b, mask[b]].abs().mean() for b in range(3)]
        assert change is not None and (change - torch.stack(expected)).abs().max() <= TOLERANCE


def _keys(attention: nn.Module, x: Tensor) -> Tensor:
    """The middle third of what `qkv` gives, (B, N, C)."""
    return (
        x @ attention.get_parameter("qkv.weight")[16:32].T
        + attention.get_parameter("qkv.bias")[16:32]
    )


def test_expert_figures_are_those_of_the_mixture() -> None:
    model = tiny("transject")
    tokens, mask = inputs_of(model)
    found = diagnose(model, tokens, mask)
    assert found.expert_weights is not None and found.expert_entropy is not None
    assert (found.expert_weights.sum(-1) - 1).abs().max() <= TOLERANCE
    for index, layer in enumerate(observe(model, tokens, mask).layers):
        experts = layer.experts()
        assert experts is not None
        share, given = experts
        assert torch.equal(found.expert_weights[:, index], share)
        mixed = sum(share[:, e, None, None] * given[:, e] for e in range(3))
        assert (layer.mixer.result[0] - mixed).abs().max() <= TOLERANCE
        for b, length in enumerate(LENGTHS):
            values_of = given[b, :, :length].detach().numpy()
            expected = scipy.stats.differential_entropy(values_of, axis=-1, method="vasicek")
            entropy = found.expert_entropy[b, index].numpy()
            assert np.abs(entropy - expected.mean(-1)).max() <= TOLERANCE


@pytest.mark.parametrize("kind", ["switch", "glam"])
def test_routing_figures_are_those_of_the_real_tokens_of_each_sequence(kind: str) -> None:
    model = tiny("lm_small", experts=kind, capacity_factor=1.0)
    tokens, mask = inputs_of(model)
    assert mask is not None
    found = diagnose(model, tokens, mask)
    assert [each is None for each in found.routing] == [kind == "glam", False, kind == "glam"]
    layers = observe(model, tokens, mask).layers
    for layer, figures_ in zip(layers, found.routing, strict=True):
        if figures_ is None:
            assert layer.routes is None
            continue
        routes = layer.routes
        assert routes is not None and figures_.dropped.max() > 0
        for b, length in enumerate(LENGTHS):
            probs, experts = routes.probs[b, :length], routes.experts[b, :length]
            load = torch.bincount(experts.flatten(), minlength=3) / experts.numel()
            assert (figures_.load[b] - load).abs().max() <= 1e-6
            entropy = torch.distributions.Categorical(probs).entropy().mean()
            assert (figures_.entropy[b] - entropy).abs() <= TOLERANCE
            room = routes.kept[b, :length].double().mean()
            assert (figures_.dropped[b] - (1 - room)).abs() <= TOLERANCE
    alone = diagnose(model, tokens[1:2, : LENGTHS[1]])
    for own, together in zip(alone.routing, found.routing, strict=True):
        for field in ("load", "entropy", "dropped") if own is not None else ():
            assert (getattr(own, field)[0] - getattr(together, field)[1]).abs().max() <= TOLERANCE
    assert diagnose(tiny("lm_small"), tokens, mask).routing == (None, None, None)


def test_two_towers_are_two_neighboring_sequences() -> None:
    pair, single = tiny("lra_transformer", towers=2), tiny("lra_transformer")
    single.load_state_dict(pair.get_submodule("encoder").state_dict(), strict=False)
    tokens = torch.randint(11, (2, 2, 6), generator=torch.Generator().manual_seed(0))
    mask = padding([6, 4, 5, 1], 6).unflatten(0, (2, 2))
    found = diagnose(pair, tokens, mask)
    expected = diagnose(single, tokens.flatten(0, 1), mask.flatten(0, 1))
    assert found.logits.shape == (2, 3)
    for figure, own in zip(figures(found)[1:], figures(expected)[1:], strict=True):
        assert (figure - own).abs().max() <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("deit_tiny_elliptical", {"img_size": 4, "num_heads": 1}),
        ("fan_tiny_elliptical", {"img_size": 4, "num_heads": 1}),
        ("transject_image", {"img_size": 4, "num_experts": 1}),
    ],
)
def test_one_head_and_one_patch_have_finite_figures(name: str, overrides: dict[str, int]) -> None:
    found = diagnose(tiny(name, **overrides), torch.full((2, 3, 4, 4), 0.5).double())
    assert all(figure.isfinite().all() for figure in figures(found))
    if found.head_redundancy is not None:
        assert (found.head_redundancy == 0).all()


@pytest.mark.parametrize("width", [5, 16, 37])
def test_figures_of_tokens_are_the_formulas_over_real_ones(width: int) -> None:
    x, mask = draw(3, 6, width), padding(LENGTHS, 6)
    cosines = diagnostics.cosine_similarity(x, mask)
    entropies = diagnostics.differential_entropy(x, mask)
    for b, length in enumerate(LENGTHS):
        real = x[b, :length]
        entropy = scipy.stats.differential_entropy(real.numpy(), axis=-1, method="vasicek").mean()
        cosine = 1 - F.pdist(F.normalize(real)).square().mean() / 2 if length > 1 else 1.0
        assert abs(float(cosines[b] - cosine)) <= TOLERANCE
        assert abs(float(entropies[b]) - entropy) <= TOLERANCE


def test_figures_at_their_limits() -> None:
    zeros = torch.zeros(2, 4, 5)
    assert diagnostics.cosine_similarity(zeros).tolist() == [0.0, 0.0]
    assert diagnostics.cosine_similarity(zeros + 1).tolist() == pytest.approx([1.0, 1.0])
    assert diagnostics.cosine_similarity(torch.eye(3)[None]).tolist() == pytest.approx([0.0])
    assert diagnostics.differential_entropy(zeros).tolist() == [-math.inf, -math.inf]
    maps = draw(2, 1, 5, 5).softmax(-1)
    assert diagnostics.head_redundancy(maps).tolist() == [0.0, 0.0]
    assert diagnostics.head_redundancy(maps.expand(-1, 3, -1, -1)).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="at least 5 activations per token, got 4"):
        diagnostics.differential_entropy(torch.ones(1, 2, 4))


def test_head_redundancy_is_the_formula() -> None:
    mask = padding(LENGTHS, 6)
    maps = draw(3, 4, 6, 6).masked_fill(~mask[:, None, None, :], -torch.inf).softmax(-1)
    found = diagnostics.head_redundancy(maps, mask)
    for b, length in enumerate(LENGTHS):
        apart = F.pdist(maps[b, :, :length, :length].flatten(1)).mean()
        assert abs(found[b] - apart) <= TOLERANCE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_is_measured_in_float32(dtype: torch.dtype) -> None:
    x = draw(2, 5, 8).to(dtype)
    for figure in (diagnostics.cosine_similarity, diagnostics.differential_entropy):
        assert torch.equal(figure(x), figure(x.float()))


@pytest.mark.parametrize("name", ["fan_tiny_elliptical", "transject"])
def test_model_and_generator_are_left_as_they_were_also_by_a_failure(name: str) -> None:
    model = tiny(name).train()
    model.get_submodule("head").eval()
    parts = list(model.modules())
    inputs, mask = inputs_of(model)
    modes, state = [part.training for part in parts], torch.get_rng_state()
    failing = Mock(side_effect=ArithmeticError)
    handle = model.get_submodule("head").register_forward_hook(failing)
    with pytest.raises(ArithmeticError):
        diagnose(model, inputs, mask)
    handle.remove()
    diagnose(model, inputs, mask)
    assert [part.training for part in parts] == modes
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in parts)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())


def test_what_cannot_be_observed_is_refused() -> None:
    network, folded, repeated = (
        tiny("deit_tiny"),
        fold(tiny("transject").float()),
        tiny("deit_tiny"),
    )
    repeated.set_submodule("blocks.1", repeated.get_submodule("blocks.0"))
    images, tokens = inputs_of(network)[0], inputs_of(folded)[0]
    for model, inputs, message in (
        (nn.Linear(2, 2), torch.ones(1, 2), "model must have attention or experts to observe"),
        (nn.Sequential(network), images, "not wrap such a one"),
        (repeated, images, "must call each of its layers once"),
        (folded, tokens, "and not be folded"),
        (network, images[:0], r"inputs must hold at least one sample, got \(0, 3, 12"),
    ):
        with pytest.raises(ValueError, match=message):
            diagnose(model, inputs)


@pytest.mark.parametrize("name", ["deit_tiny_elliptical", "fan_tiny"])
@pytest.mark.parametrize("place", ["blocks.1", "blocks.1.attn", "norm"])
def test_calls_of_another_thread_are_not_recorded(name: str, place: str) -> None:
    model = tiny(name)
    images, others = inputs_of(model)[0], torch.rand(3, 3, 12, 12, dtype=torch.float64)
    expected = observe(model, images)

    def run_elsewhere(*_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=model, args=(others,))
            thread.start()
            thread.join()

    model.get_submodule(place).register_forward_pre_hook(run_elsewhere)
    found = observe(model, images)
    assert len(found.layers) == 3
    exact, given = (
        [(each.inputs, each.outputs, *each.mixer.result) for each in seen.layers]
        + [seen.class_maps]
        for seen in (expected, found)
    )
    torch.testing.assert_close(given, exact, rtol=0, atol=0)

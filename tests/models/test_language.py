"""Language models: no token sees later ones, each mechanism is its formula on each prefix."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import models
from models.attention.base import Attention, Place
from models.attention.catalog import ATTENTIONS, make_attention, make_options
from models.attention.performer import product_before
from models.inference.generate import generate
from models.language import AdaptiveSoftmax, LanguageConfig, LanguageModel, Seen
from tests.models import plain_transformer as plain
from tests.models.plain_attentions import HEADS, plain_attention
from tests.models.plain_robust_attentions import plain_robust_attention
from tests.models.small import draw, small

CAUSAL: dict[str, list[dict[str, Any]]] = {
    "dot": [{}],
    "elliptical": [
        {},
        {"scaling": "mean"},
        {"scaling": "none", "delta": 0.5},
        {"estimator": "random", "metric_seed": 0},
    ],
    "longformer": [{"window": 2}, {"window": 4}],
    "performer": [{"features": 6}],
    "synthesizer": [{}],
    "kde": [{"width": 0.5}],
    "mom": [{"blocks": 3}, {"blocks": 2}],
    "mgk": [{"sets": 3}],
    "fourier": [{}],
}
VARIANTS = [(name, options) for name, several in CAUSAL.items() for options in several]
MIXTURES: dict[str, dict[str, Any]] = {
    "dense": {},
    "switch": {"experts": "switch", "capacity_factor": 0.8},
    "glam": {"experts": "glam", "capacity_factor": 1.5},
}
LEAKS = [("elliptical", {"causal_metric": "segment", "scaling": s}) for s in ("max", "none")]
HOLES = torch.tensor([[1] * 8, [0, 1, 1, 0, 1, 0, 1, 1], [0] * 6 + [1, 1], [1] + [0] * 7]).bool()
every_variant = pytest.mark.parametrize(("name", "options"), VARIANTS)
every_mixture = pytest.mark.parametrize("mixture", MIXTURES)


def layer_of(name: str, options: dict[str, Any]) -> Attention:
    """A causal layer in float64 away from its first weights."""
    torch.manual_seed(0)
    chosen, place = make_options(name, options), Place(length=9, causal=True)
    layer = make_attention(8, 2, attention=name, options=chosen, place=place).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return layer


def model_of(name: str, options: dict[str, Any], **overrides: Any) -> LanguageModel:
    return small("lm_small", attention=name, seq_len=12, **options, **overrides)


def plain_layer(name: str, layer: Attention, x: Tensor, v_prev: Tensor, given: Any) -> Tensor:
    """What the mechanism makes of tokens (n, C), all of which see each other."""
    w = dict(layer.named_buffers()) | {k: p.detach() for k, p in layer.state_dict().items()}
    options = make_options(name, given)
    if name == "elliptical":
        named = {f"attn.{key}": value for key, value in w.items()}
        if given.get("estimator") == "random":  # its table scales the queries as a map would
            scale = torch.cat((w["table"][0, :, 0].flatten(), torch.ones(16).double()))
            named["attn.qkv.weight"] = scale[:, None] * named["attn.qkv.weight"]
            named["attn.qkv.bias"] = scale * named["attn.qkv.bias"]
            return plain.attention(x, named, "attn", 2)[0]
        return plain.attention(x, named, "attn", 2, v_prev, **given)[0]
    formula = plain_attention if name in HEADS else plain_robust_attention
    return formula(name, x, w, 2, options)


def plain_windows(layer: Attention, x: Tensor, window: int) -> Tensor:
    """Longformer's last token: what it sees of (n, C) are the first token and its window."""
    seen = [j for j in range(len(x)) if j == 0 or len(x) - 1 - j <= window]
    w = {f"attn.{key}": value.detach() for key, value in layer.state_dict().items()}
    return plain.attention(x[seen], w, "attn", 2)[0]


@every_variant
@pytest.mark.parametrize("rubbish", [None, 0.0, 1e30])
def test_each_answer_is_the_formula_on_the_tokens_up_to_it(
    name: str, options: dict[str, Any], rubbish: float | None
) -> None:
    layer, x, v_prev = layer_of(name, options), draw(4, 8, 8), draw(4, 2, 8, 4, seed=1)
    mask = None if rubbish is None else HOLES
    given = x if mask is None else x.masked_fill(~mask[:, :, None], rubbish or 0.0)
    out, _ = layer(given, v_prev, mask)
    assert out.isfinite().all()
    previous = v_prev.transpose(1, 2).flatten(2)
    everything = torch.ones_like(HOLES) if mask is None else mask
    for sample, row, values, real in zip(out, x, previous, everything, strict=True):
        for n, answer in enumerate(sample[real], start=1):
            seen, before = row[real][:n], values[real][:n]
            if name == "longformer":
                expected = plain_windows(layer, seen, options["window"])
            else:
                expected = plain_layer(name, layer, seen, before, options)
            assert (answer - expected[-1]).abs().max() <= 1e-10


@every_variant
def test_graph_form_is_the_layer(name: str, options: dict[str, Any]) -> None:
    layer, x, v_prev = layer_of(name, options), draw(4, 8, 8), draw(4, 2, 8, 4, seed=1)
    form = layer.graph_form()
    values = v_prev if form is layer else v_prev.transpose(1, 2).flatten(2)
    for mask in (None, HOLES):
        real = torch.ones_like(HOLES) if mask is None else mask
        apart = form(x, values, mask)[0] - layer(x, v_prev, mask)[0]
        assert apart[real].abs().max() <= 1e-12


@torch.no_grad()
def change_after(model: LanguageModel, n: int) -> float:
    """How much logits up to token n move where each token after it is another one."""
    tokens = torch.randint(0, 11, (3, 12), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[:, n + 1 :] = (other[:, n + 1 :] + 1 + n % 10) % 11
    return float((model(tokens) - model(other))[:, : n + 1].abs().max())


@every_variant
@every_mixture
@pytest.mark.parametrize("cutoffs", [(), (4, 7)])
def test_no_logit_depends_on_later_tokens(
    name: str, options: dict[str, Any], cutoffs: tuple[int, ...], mixture: str
) -> None:
    model = model_of(name, options, cutoffs=cutoffs, depth=3, **MIXTURES[mixture])
    assert [change_after(model, n) for n in range(11)] == [0.0] * 11


@pytest.mark.parametrize(("name", "options"), LEAKS)
def test_metric_of_the_segment_leaks_later_tokens(name: str, options: dict[str, Any]) -> None:
    model = model_of(name, options)
    assert change_after(model, 0) == 0  # the first token has no weights to change
    assert min(change_after(model, n) for n in range(1, 11)) > 1e-4


def test_every_mechanism_is_offered_or_refused_with_the_reason() -> None:
    for name in ATTENTIONS.keys() - CAUSAL.keys():
        message = f"attention must be causal in a language model, got '{name}': .*all tokens|whole"
        with pytest.raises(ValueError, match=message):
            models.config("lm_small", attention=name)
        assert ATTENTIONS[name].not_causal
    with pytest.raises(ValueError, match="estimator must be difference or random in a language"):
        models.config("lm_small_elliptical", estimator="consistent")


@every_variant
@every_mixture
def test_padding_and_the_batch_change_nothing_and_every_parameter_learns(
    name: str, options: dict[str, Any], mixture: str
) -> None:
    model = model_of(name, options, **MIXTURES[mixture])
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 11, (4, 12), generator=generator)
    mask = torch.arange(12) < torch.tensor([12, 1, 7, 4])[:, None]
    logits = model(tokens, mask)
    assert logits.isfinite().all() and logits.shape == (4, 12, 11)
    for row, real, found in zip(tokens, mask, logits, strict=True):
        assert (model(row[None, real])[0] - found[real]).abs().max() <= 1e-12
    F.cross_entropy(logits[mask], tokens[mask]).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(*each, marks=() if each == ("elliptical", {}) else (pytest.mark.slow,))
        for each in VARIANTS + LEAKS
    ],
)
def test_torch_export_keeps_batch_and_length_free(name: str, options: dict[str, Any]) -> None:
    model = model_of(name, options).float()
    shape: dict[int, object] = {0: torch.export.Dim("batch", min=1)}
    shape[1] = torch.export.Dim("length", min=1, max=12)
    given = torch.zeros(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.bool)
    program = torch.export.export(model, given, dynamic_shapes=(shape, shape)).module()
    for B, N in ((1, 12), (3, 1), (5, 9)):
        tokens = torch.randint(0, 11, (B, N), generator=torch.Generator().manual_seed(B))
        mask = torch.arange(N) < torch.arange(N, N + B)[:, None] - B + 1
        mask[:, 0] = True
        apart = (program(tokens, mask) - model(tokens, mask))[mask]
        assert apart.abs().max() <= 1e-4


def test_performer_sums_over_chunks_and_stays_finite_where_exponents_are_large() -> None:
    layer, x = layer_of("performer", {"features": 6}), draw(2, 150, 8)
    q, k, v = (each.detach() for each in layer.project(x, None, None))
    expected = (q @ k.transpose(2, 3)).tril() @ v
    assert (product_before(q, k, v) - expected).abs().max() <= 1e-10 * expected.abs().max()
    x = (100 * x).float().requires_grad_()
    out, _ = layer.float()(x)
    out.sum().backward()
    assert out.isfinite().all() and x.grad is not None and x.grad.isfinite().all()


def test_model_is_pre_norm_with_long_embeddings_and_a_tied_softmax() -> None:
    model = model_of("elliptical", {})
    w = {key: value.detach() for key, value in model.state_dict().items()}
    tokens, v = torch.tensor([3, 1, 4, 1, 5]), None
    x = w["token_embed.weight"][tokens] * 4 + plain.sinusoidal(torch.arange(5), 16)
    for layer in range(2):
        prefixes = [(x[:n], v if v is None else v[:n]) for n in range(1, 6)]
        found = [plain.pre_norm_block(a, w, f"blocks.{layer}", 2, b) for a, b in prefixes]
        x, v = (torch.stack([each[-1] for each in part]) for part in zip(*found, strict=True))
    expected = plain.norm(x, w, "norm") @ w["token_embed.weight"].T
    assert (model(tokens[None])[0] - expected).abs().max() <= 1e-10


def test_adaptive_softmax_is_the_one_of_torch() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 11, [4, 7], div_value=4.0)
    ours, x = AdaptiveSoftmax(16, 11, (4, 7)), torch.randn(2, 3, 16)
    ours.load_state_dict(theirs.state_dict())
    assert (ours(x).flatten(0, 1) - theirs.log_prob(x.flatten(0, 1))).abs().max() <= 1e-6
    assert (ours(x).exp().sum(-1) - 1).abs().max() <= 1e-6


def test_sizes_are_those_of_the_paper() -> None:
    for name, millions in (("lm_small", 44), ("lm_medium", 90), ("lm_small_elliptical", 44)):
        with torch.device("meta"):
            model = models.build(name)
        assert round(sum(p.numel() for p in model.parameters()) / 1e6) == millions
    config = models.config("lm_medium_elliptical")
    assert isinstance(config, LanguageConfig) and config.default_layers == tuple(range(2, 17))
    assert (config.hidden_dim, config.seq_len) == (2048, 384)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"cutoffs": (5, 5)}, r"cutoffs must ascend between 0 and vocab_size 11, got \(5, 5\)"),
        ({"cutoffs": (11,)}, r"cutoffs must ascend between 0 and vocab_size 11, got \(11,\)"),
        ({"embed_dim": 9, "num_heads": 3}, "embed_dim must be a multiple of 2 for positions"),
        ({"causal_metric": "suffix"}, "'causal_metric' is an option of elliptical, not of"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
    ],
)
def test_values_against_the_rules_are_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.config("lm_small", vocab_size=11, **overrides)


@every_variant
@every_mixture
@pytest.mark.parametrize("cutoffs", [(), (4, 7)])
def test_logits_of_a_cache_are_those_of_the_full_pass(
    name: str, options: dict[str, Any], cutoffs: tuple[int, ...], mixture: str
) -> None:
    model = model_of(name, options, cutoffs=cutoffs, depth=3, **MIXTURES[mixture])
    tokens = torch.randint(0, 11, (2, 12), generator=torch.Generator().manual_seed(0))
    expected = model(tokens)
    for sizes in ([1] * 12, [5, 1, 1, 5], [12], [3, 9]):
        seen = Seen()
        found = [model.extend(part, seen) for part in tokens.split(sizes, dim=1)]
        assert (torch.cat(found, dim=1) - expected).abs().max() <= 1e-10
    with pytest.raises(ValueError, match="tokens must be at most seq_len 12, got 13"):
        model.extend(tokens[:, :1], seen)


@pytest.mark.parametrize(("name", "options"), LEAKS)
def test_metric_of_the_segment_has_no_cache(name: str, options: dict[str, Any]) -> None:
    model, prompt = model_of(name, options), torch.tensor([[1, 2]])
    with pytest.raises(ValueError, match="must have a cache, got one without: its metric of the"):
        generate(model, prompt, count=2)
    assert generate(model, prompt, count=2, cache=False).shape == (1, 2)


def test_continuations_with_and_without_a_cache_are_the_same() -> None:
    model, prompt = model_of("elliptical", {}), torch.tensor([[3, 1, 4], [1, 5, 9]])
    several: list[dict[str, Any]] = [{}, {"temperature": 0.7, "seed": 1}, {"banned": [2, 3]}]
    found = prompt
    for options in several:
        found = generate(model, prompt, count=25, **options)  # twice the context
        assert torch.equal(found, generate(model, prompt, count=25, cache=False, **options))
    assert not torch.isin(found, torch.tensor([2, 3])).any()
    greedy, drawn = (generate(model, prompt, count=25, temperature=t) for t in (0.0, 2.0))
    assert not torch.equal(greedy, drawn)
    assert torch.equal(drawn, generate(model, prompt, count=25, temperature=2.0))
    again = model(torch.cat((prompt, greedy[:, :4]), dim=1))[:, 2:-1].argmax(-1)
    assert torch.equal(again, greedy[:, :4])
    long = torch.randint(0, 11, (1, 40), generator=torch.Generator().manual_seed(0))
    assert torch.equal(generate(model, long, count=3), generate(model, long[:, -12:], count=3))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt": torch.zeros(1, 0).long()}, r"prompt must be \(B, n >= 1\), got \(1, 0\)"),
        ({"temperature": -1.0}, "count and temperature must be at least 0, got 2, -1.0"),
        ({"prompt": torch.tensor([[11]])}, "tokens must lie in 0..10, got 11..11"),
    ],
)
def test_prompts_against_the_rules_are_refused(given: dict[str, Any], message: str) -> None:
    asked: dict[str, Any] = {"prompt": torch.tensor([[1]]), "count": 2} | given
    with pytest.raises(ValueError, match=message):
        generate(model_of("dot", {}), asked.pop("prompt"), **asked)

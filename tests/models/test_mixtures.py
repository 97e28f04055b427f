"""Mixtures of experts: against a loop over tokens, and what a language model needs of them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import models
from models.language import LanguageConfig, LanguageModel
from models.layers.experts import KINDS, Mixture
from models.layers.routing import Router, auxiliary_loss
from tests.models.small import draw, padding, small

HOLES = torch.tensor([[1] * 9, [0, 1, 1, 0, 1, 0, 1, 1, 0], [0] * 8 + [1]]).bool()
every_kind = pytest.mark.parametrize("kind", KINDS)


def mixture_of(top_k: int, capacity: int, **options: Any) -> Mixture:
    torch.manual_seed(0)
    router = Router(8, 4, top_k=top_k, capacity=capacity, **options)
    mixture = Mixture(router, 6).double().eval()
    with torch.no_grad():
        for parameter in mixture.parameters():
            parameter.normal_()
    return mixture


def plain_mixture(tokens: Tensor, mixture: Mixture) -> tuple[Tensor, int]:
    """Tokens (n, C) one by one; and how many choices found no room."""
    router, room = mixture.router, [mixture.router.capacity] * 4
    answers, dropped = [], 0
    for token in tokens:
        scores = (router.weight @ token).exp()
        probs = (scores / scores.sum()).tolist()
        chosen = sorted(range(4), key=lambda e: -probs[e])[: router.top_k]
        total = sum(probs[e] for e in chosen) if router.normalized else 1.0
        answer = torch.zeros(8, dtype=torch.float64)
        for e in chosen:
            if room[e] > 0:
                hidden = F.gelu(mixture.w1[e].T @ token)
                answer = answer + probs[e] / total * (mixture.w2[e].T @ hidden)
            dropped += room[e] <= 0
            room[e] -= 1
        answers.append(answer)
    return torch.stack(answers), dropped


@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("capacity", [1, 2, 3, 9])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_mixture_is_a_loop_over_the_tokens(
    top_k: int, capacity: int, normalized: bool, masked: bool
) -> None:
    mixture, x = mixture_of(top_k, capacity, normalized=normalized), draw(3, 9, 8)
    mask = HOLES if masked else None
    given = x.masked_fill(~HOLES[:, :, None], 1e30) if masked else x
    found, kept = mixture(given, mask), mixture.router(given, mask).kept
    assert found.isfinite().all()
    for answers, room, tokens, real in zip(found, kept, x, HOLES | (not masked), strict=True):
        expected, dropped = plain_mixture(tokens[real], mixture)
        assert (answers[real] - expected).abs().max() <= 1e-10
        assert not answers[~real].any() and not room[~real].any()
        assert int((~room[real]).sum()) == dropped
        assert (dropped > 0) == (capacity < real.sum() and not room[real].all())


def test_tokens_without_room_pass_by() -> None:
    mixture, x = mixture_of(1, 2), draw(1, 1, 8).expand(2, 9, 8)  # all choose the same expert
    found = mixture(x)
    assert found[:, :2].abs().min() > 0 and not found[:, 2:].any()
    assert mixture.router(x).kept[:, :, 0].sum(1).tolist() == [2, 2]


def test_second_choices_do_not_wait_for_later_first_ones() -> None:
    mixture = mixture_of(2, 1)
    with torch.no_grad():
        mixture.router.weight.copy_(torch.eye(4, 8) * 9)
    x = torch.zeros(1, 2, 8, dtype=torch.float64)
    x[0, 0, :2], x[0, 1, 1:3] = torch.tensor([2.0, 1.0]), torch.tensor([2.0, 1.0])
    routes = mixture.router(x)
    assert routes.experts[0].tolist() == [[0, 1], [1, 2]]
    assert routes.kept[0].tolist() == [[True, True], [False, True]]


def test_router_computes_in_float32_under_autocast() -> None:
    mixture, x = mixture_of(2, 9).float(), draw(2, 9, 8).float()
    expected = mixture.router(x)
    with torch.autocast("cpu", torch.bfloat16):
        found, answers = mixture.router(x), mixture(x)
        mixture.train()(x)
    rounded = auxiliary_loss(mixture)
    mixture(x)
    assert rounded == auxiliary_loss(mixture) != 0
    mixture.eval()
    assert found.probs.dtype == torch.float32 and torch.equal(found.probs, expected.probs)
    assert (answers - mixture(x)).abs().max() <= 0.05 * mixture(x).abs().max()
    assert mixture.bfloat16().router(x.bfloat16()).probs.dtype == torch.float32


def test_training_alone_jitters_and_holds_its_loss() -> None:
    mixture, x = mixture_of(1, 9, jitter=0.5), draw(2, 9, 8)
    probs = mixture.router(x).probs
    assert torch.equal(mixture.router(x).probs, probs) and auxiliary_loss(mixture) == 0.0
    mixture.train()
    assert not torch.equal(mixture.router(x).probs, probs)
    assert auxiliary_loss(mixture) != 0.0


def test_auxiliary_loss_is_the_formula_over_real_tokens() -> None:
    mixture, x = mixture_of(2, 1).train(), draw(3, 9, 8)
    probs = mixture.router(x, HOLES).probs[HOLES]
    share = torch.bincount(probs.argmax(1), minlength=4).double() / len(probs)
    expected = 4 * (share * probs.mean(0)).sum()
    found = auxiliary_loss(mixture)
    assert isinstance(found, Tensor) and (found - expected).abs() <= 1e-12
    found.backward()
    gradient = mixture.router.weight.grad
    assert gradient is not None and gradient.abs().max() > 0


@every_kind
def test_capacity_is_the_same_at_every_length(kind: str) -> None:
    for seq_len, factor, capacity in ((256, 1.25, 40), (256, 1.0, 32), (10, 1.0, 2), (4, 9.0, 4)):
        sizes = {"seq_len": seq_len, "experts": kind, "capacity_factor": factor}
        config = models.config("lm_small", **sizes)
        assert isinstance(config, LanguageConfig) and config.capacity == capacity
    defaults = models.config("lm_small", experts=kind)
    assert isinstance(defaults, LanguageConfig)
    assert defaults.capacity == 40 * KINDS[kind].top_k


@every_kind
def test_layers_are_mixtures_with_as_many_active_weights_as_the_dense_model(kind: str) -> None:
    with torch.device("meta"):
        dense, model = models.build("lm_small"), models.build("lm_small", experts=kind)
    assert isinstance(model, LanguageModel) and isinstance(dense, LanguageModel)
    for layer, (block, own) in enumerate(zip(model.blocks, dense.blocks, strict=True), start=1):
        mixture = block.get_submodule("mlp")
        if layer % KINDS[kind].every:
            assert not isinstance(mixture, Mixture)
            continue
        assert isinstance(mixture, Mixture) and mixture.router.top_k == KINDS[kind].top_k
        every = sum(p.numel() for p in (mixture.w1, mixture.w2)) // 8 * mixture.router.top_k
        active = every + mixture.router.weight.numel()
        expected = sum(p.numel() for p in own.get_submodule("mlp").parameters())
        assert abs(active / expected - 1) < 0.005
    both = models.config("lm_small", experts=kind, top_k=2)  # as the paper routes
    assert isinstance(both, LanguageConfig) and both.choices == 2


@every_kind
def test_experts_see_a_sequence_alone(kind: str) -> None:
    model = small("lm_small", experts=kind, depth=3, capacity_factor=1.0)
    tokens = torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(0))
    mask = padding([9, 5, 9, 1], 9)
    logits = model(tokens, mask)
    same = model(tokens.masked_fill(~mask, 0), mask)
    assert torch.equal(logits[mask], same[mask])
    for row, real, found in zip(tokens, mask, logits, strict=True):
        assert (model(row[None, real])[0] - found[real]).abs().max() <= 1e-12


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("lm_small", {"experts": "glamm"}, "experts must be one of switch, glam, got 'glamm'"),
        ("lm_small", {"experts": "switch", "num_experts": 0}, "num_experts must be at least 1"),
        ("lm_small", {"experts": "switch", "top_k": 9}, r"top_k must lie in 1\.\.8, got 9"),
        ("lm_small", {"experts": "glam", "num_experts": 1}, "num_experts must be at least top_k 2"),
        ("lm_small", {"experts": "switch", "capacity_factor": 0.0}, "capacity_factor must be pos"),
        ("lm_small", {"experts": "switch", "jitter": 1.0}, r"jitter must lie in \[0, 1\), got 1"),
        ("lm_small", {"experts": "glam", "mlp_ratio": 0.3984375}, "multiple of top_k, got 51 and"),
        ("lm_small", {"num_experts": 4}, "num_experts needs experts, got 4 with experts None"),
        (
            "deit_tiny",
            {"experts": "switch"},
            "'experts' is no .* field of deit_tiny; .* field of lm_s",
        ),
        (
            "transject",
            {"experts": "glam"},
            "'experts' is no .* field of transject; .* field of lm_s",
        ),
    ],
)
def test_values_against_the_rules_are_refused(
    name: str, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        models.config(name, **overrides)

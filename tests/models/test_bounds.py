"""Bounds of substituted pieces, against every text of a tiny vocabulary."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import models
from models.analysis.bounds import Bounds, refusal
from models.analysis.reach import Proposals, center, gate_box, gate_reach, least, tightened
from models.analysis.substitutions import Substitutions
from models.inference.fold import fold

SIZES = {"vocab_size": 5, "seq_len": 5, "embed_dim": 8, "depth": 2, "num_classes": 3}
TEXTS = torch.tensor(list(product(range(5), repeat=5)))


def made(name: str, scale: float = 0.3, **config: Any) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        model = models.build(name, **SIZES | config)
        for key, parameter in model.named_parameters():
            if key.endswith((".r", "bias", ".b1", ".b2")):
                nn.init.normal_(parameter, std=scale)
    return model.eval().requires_grad_(False)


def margins(logits: Tensor, label: int) -> Tensor:
    others = torch.cat((logits[:, :label], logits[:, label + 1 :]), dim=1)
    return logits[:, label] - others.amax(1)


MADE: list[tuple[str, dict[str, Any]]] = [
    ("transject_random", {"num_experts": 2}),
    ("transject_random", {"num_experts": 3, "depth": 1, "scale": 1.0}),
    ("transject_random", {"num_experts": 2, "token_bound": 0.5}),
    ("transject", {"num_experts": 1, "depth": 1, "scale": 0.1}),
    ("transject", {"num_experts": 2, "depth": 1, "positions": False}),
]


@pytest.mark.parametrize(("name", "config"), MADE)
def test_no_text_falls_below_the_bound(name: str, config: dict[str, Any]) -> None:
    model, counts = made(name, **config), [0, 1, 2, 3]
    exact, bounds = made(name, **config).double(), Bounds(model)
    logits, near = exact(TEXTS), 0
    for number in (77, 1500, 2900):
        changed = (TEXTS != TEXTS[number]).sum(1)
        label = int(logits[number].argmax())
        true = margins(logits, label)
        for count, found in zip(counts, bounds.worst(TEXTS[number], label, counts), strict=True):
            worst = float(true[changed <= count].min())
            assert found.margin <= worst + 1e-10
            text = TEXTS[number].clone()
            text[found.places] = torch.tensor(found.pieces, dtype=torch.int64)
            assert int((text != TEXTS[number]).sum()) <= count
            near += count > 0 and worst - found.margin < 0.3 * float(true[number] - worst)
        [clean] = bounds.worst(TEXTS[number], label, [0])
        assert clean.margin == pytest.approx(float(true[number]), abs=2e-3)
    assert near >= 8 or name == "transject"  # five pieces are too few for means of squares


def test_one_expert_has_the_exact_worst_case() -> None:
    model = made("transject_random", num_experts=1, scale=1.0)
    counts, text = [1, 2, 3], TEXTS[1234]
    pairs = zip(
        *(each(model).worst(text, 0, counts) for each in (Bounds, Substitutions)), strict=True
    )
    for found, exact in pairs:
        assert found.margin == pytest.approx(exact.margin, abs=1e-12)
        assert (found.places, found.pieces) == (exact.places, exact.pieces)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_gates_stay_within_reach(count: int) -> None:
    draw = torch.Generator().manual_seed(count)
    pieces = torch.randn(4, 5, 3, 6, generator=draw, dtype=torch.float64)  # (V, N, E, d)
    weight = torch.randn(6, generator=draw, dtype=torch.float64)
    gaps = (pieces[:, :, :, None] - pieces[:, :, None]).amax(1)
    everything = torch.tensor(list(product(range(4), repeat=5)))
    scores = pieces[everything, torch.arange(5)].amax(1) @ weight  # (texts, E)
    for number in (0, 400, 999):
        own = pieces[everything[number], torch.arange(5)].transpose(0, 1)
        reach = gate_reach(
            weight, own, torch.zeros(3, 5, 1, dtype=torch.float64),
            Proposals(tops=pieces.amax(1), gaps=gaps), (0.0, 0.0), count,
        )  # fmt: skip
        near = (everything != everything[number]).sum(1) <= count
        assert (scores[near][:, :, None] - scores[near][:, None] <= reach + 1e-12).all()
        low, high = gate_box(reach)
        gates = scores[near].softmax(1)
        assert (low <= gates + 1e-12).all() and (gates <= high + 1e-12).all()


def test_the_least_of_a_slope_over_gates_is_at_a_corner() -> None:
    low, high = torch.tensor([0.1, 0.2, 0.0]), torch.tensor([0.9, 0.5, 0.3])
    assert tightened(low + 0.5, high) is None
    bounds = tightened(low, high)
    assert bounds is not None
    assert float(center(*bounds).sum()) == pytest.approx(1.0)
    grid = torch.rand(20000, 3, generator=torch.Generator().manual_seed(0)) * (high - low) + low
    grid[:, 2] = 1 - grid[:, 0] - grid[:, 1]
    grid = grid[(grid[:, 2] >= low[2]) & (grid[:, 2] <= high[2])]
    for slope in torch.eye(3) - torch.tensor([0.3, -0.2, 0.5]):
        found = float(least(slope, *bounds))
        assert 0 <= float((grid @ slope).min()) - found < 0.02


@pytest.mark.parametrize(("name", "config"), MADE)
def test_float32_stays_above_the_bound(name: str, config: dict[str, Any]) -> None:
    model, exact = made(name, **config), made(name, **config).double()
    bounds, texts = Bounds(model), TEXTS[::301]
    rounding = bounds.rounding(5)
    for served in (model, fold(model)):
        for label in range(3):
            given, true = (margins(each(texts), label) for each in (served, exact))
            for text, margin, own in zip(texts, given.tolist(), true.tolist(), strict=True):
                [clean] = bounds.worst(text, label, [0])
                assert own - 5e-3 < clean.margin - rounding < margin


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("transject", {"pooling": "max"}, "max pooling"),
        ("transject_random", {"towers": 2}, "not of TransJectTowers"),
        ("transject", {"vocab_size": 30522, "seq_len": 512, "embed_dim": 512}, "takes 5.0"),
        ("lra_transformer", {"num_heads": 2}, "not of"),
    ],
)
def test_other_models_are_refused(name: str, config: dict[str, Any], message: str) -> None:
    model = models.build(name, **SIZES | config)
    assert message in str(refusal(model)) and str(refusal(model)).count(". ") == 0
    with pytest.raises(ValueError, match=message):
        Bounds(model)


def test_finished_places_stay_after_an_interruption() -> None:
    model, calls = made("transject", num_experts=2), []

    def stop() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    bounds = Bounds(model)
    with pytest.raises(KeyboardInterrupt):
        bounds.extend(1, stop)
    text = TEXTS[int(np.random.default_rng(0).integers(len(TEXTS)))]
    again, whole = bounds.worst(text, 1, [1]), Bounds(model).worst(text, 1, [1])
    assert again == whole

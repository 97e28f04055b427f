"""The exact worst case of substituted pieces, against every text of a tiny vocabulary."""

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import models
from models.analysis.substitutions import Substitutions, refusal
from models.inference.fold import fold

SIZES = {"vocab_size": 5, "seq_len": 6, "embed_dim": 8, "depth": 2, "num_experts": 1}


def provable(**config: Any) -> nn.Module:
    """A TransJect with weights large enough that everything matters."""
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        model = models.build("transject_random", **SIZES | {"num_classes": 3} | config)
        for name, parameter in model.named_parameters():
            if name.endswith((".r", "bias", ".b1", ".b2")):
                nn.init.normal_(parameter)
    return model.eval()


def margins(model: nn.Module, tokens: Tensor, label: int) -> Tensor:
    logits = model(tokens).detach()
    others = torch.cat((logits[:, :label], logits[:, label + 1 :]), dim=1)
    return logits[:, label] - others.amax(1)


BAG = {"token_bound": 0.7, "positions": False}


@pytest.mark.parametrize(
    ("length", "config"), [(2, {}), (5, {}), (5, {"token_bound": 0.7}), (5, BAG)]
)
def test_the_worst_case_is_that_of_all_texts(length: int, config: dict[str, Any]) -> None:
    model, counts = provable(**config), [1, 2, 3]
    exact, worst = provable(**config).double(), Substitutions(model)
    for seed, label in [(0, 0), (1, 1), (2, 2)]:
        text = torch.from_numpy(np.random.default_rng(seed).integers(0, 5, length))
        texts = torch.tensor(list(product(range(5), repeat=length)))
        changed = (texts != text).sum(1)
        true = margins(exact, texts, label)
        for count, found in zip(counts, worst.worst(text, label, counts), strict=True):
            assert found.margin == pytest.approx(float(true[changed <= count].min()), abs=1e-12)
            made = text.clone()
            made[found.places] = torch.tensor(found.pieces)
            assert int((made != text).sum()) <= count
            assert float(margins(exact, made[None], label)) == pytest.approx(found.margin)


@pytest.mark.parametrize("bound", [None, 0.7])
def test_float32_stays_within_the_stated_rounding(bound: float | None) -> None:
    config = {"embed_dim": 32, "depth": 3, "token_bound": bound}
    model, exact = provable(**config), provable(**config).double()
    texts = torch.tensor(list(product(range(5), repeat=6))[::31])
    bound = Substitutions(model).rounding(6)
    for first, second in combinations(range(3), 2):
        for made in (model, fold(model)):
            answers = (each(texts).detach().double() for each in (made, exact))
            own, true = (each[:, first] - each[:, second] for each in answers)
            assert float((own - true).abs().max()) < bound < 0.01


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("transject", {}, "computed from the input"),
        ("transject_random", {"num_experts": 4}, "gate of 4"),
        ("transject_random", {"pooling": "max"}, "max pooling"),
        ("transject_random", {"towers": 2}, "not of TransJectTowers"),
        ("lra_transformer", {"num_heads": 2, "num_experts": None}, "not of"),
    ],
)
def test_models_whose_tokens_meet_are_refused(name: str, config: dict, message: str) -> None:
    given = {k: v for k, v in (SIZES | config).items() if v is not None}
    model = models.build(name, **given)
    assert message in str(refusal(model)) and str(refusal(model)).count(". ") == 0
    with pytest.raises(ValueError, match=message):
        Substitutions(model)

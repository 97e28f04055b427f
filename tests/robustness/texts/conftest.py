"""Small models of texts: a bag of words, whose best replacement is known, and transformers."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import models
from data.datasets.listops import TOKENS, value_of
from data.tokenizer import TextTokenizer, byte_tokenizer, listops_tokenizer, train_wordpiece
from robustness.text_target import TextTarget, open_text_target
from runtimes.artifact import open_artifact
from runtimes.base import Inputs

WORDS = (
    "the film was a very good one and not at all as bad as they say it is great dull awful "
    "lovely boring plot story people acting music scenes end"
).split()


class Bag(nn.Module):
    """logits = W mean(embeddings of real tokens), with a dropout that only training mode shows."""

    def __init__(self, vocab_size: int, num_classes: int = 2) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(5)
        self.embedding = nn.Embedding(vocab_size, 6)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(6, num_classes)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draw))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Logits (B, K) of tokens and mask (B, N)."""
        x = self.embedding(tokens) * mask[..., None]
        return self.head(self.dropout(x.sum(1) / mask.sum(1, keepdim=True)))


class ModuleRuntime:
    """Serves a module, one row after the other, so that no other row can matter."""

    name, precision = "module", "fp32"

    def __init__(self, module: nn.Module) -> None:
        self.module = deepcopy(module).eval()

    def predict(self, inputs: Inputs) -> np.ndarray:
        assert isinstance(inputs, Mapping)
        tokens, mask = torch.from_numpy(inputs["tokens"]), torch.from_numpy(inputs["mask"])
        with torch.no_grad():
            rows = [self.module(t[m][None], m[m][None]) for t, m in zip(tokens, mask, strict=True)]
        return torch.cat(rows).float().numpy()


def target_of(
    torch_model: nn.Module, tokenizer: TextTokenizer, classes: list[str], *, max_len: int = 24
) -> TextTarget:
    return TextTarget(
        name="small",
        version="1",
        digest="0" * 64,
        labels=classes,
        tokenizer=tokenizer,
        max_len=max_len,
        runtime=ModuleRuntime(torch_model),
        torch_model=torch_model,
    )


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    """Every word of `WORDS` is a token, and so is every letter of them."""
    return train_wordpiece([" ".join(WORDS)] * 3, vocab_size=200)


@pytest.fixture
def bag(tokenizer: TextTokenizer) -> TextTarget:
    return target_of(Bag(tokenizer.vocab_size), tokenizer, ["neg", "pos"])


@pytest.fixture(scope="session")
def texts() -> list[str]:
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(WORDS, draw.integers(3, 15))) for _ in range(12)]


def sequence_model(name: str, **sizes: int) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = models.build(name, embed_dim=16, depth=2, num_heads=2, **sizes)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.4)
    return model.eval()


@pytest.fixture
def elliptical() -> TextTarget:
    model = sequence_model("lra_transformer_elliptical", vocab_size=257, seq_len=64, num_classes=3)
    return target_of(model, byte_tokenizer(), ["a", "b", "c"], max_len=64)


def listops_model() -> nn.Module:
    return sequence_model("lra_transformer", vocab_size=16, seq_len=64, num_classes=10)


@pytest.fixture
def listops_target() -> TextTarget:
    target = target_of(listops_model(), listops_tokenizer(), TOKENS[:10], max_len=64)
    return replace(target, relabel=value_of)


def expression(draw: np.random.Generator, depth: int = 1) -> str:
    parts = [
        expression(draw, depth + 1) if depth < 3 and draw.random() < 0.3 else str(draw.integers(10))
        for _ in range(draw.integers(2, 4))
    ]
    return " ".join([TOKENS[draw.integers(10, 14)], *parts, "]"])


@pytest.fixture(scope="session")
def expressions() -> list[str]:
    draw = np.random.default_rng(1)
    return [expression(draw) for _ in range(8)]


@pytest.fixture(scope="session")
def make_expression() -> Callable[[np.random.Generator], str]:
    return expression


@pytest.fixture(scope="session")
def make_listops_model() -> Callable[[], nn.Module]:
    return listops_model


@pytest.fixture(scope="session")
def imdb() -> TextTarget:
    """The shipped model of reviews."""
    folder = Path(__file__).parents[3] / "artifacts" / "imdb-transject"
    return open_text_target(open_artifact(folder), threads=1)

"""What is proved of texts whose pieces are replaced, and does anything beat the proof?

Of tiny models the worst case is compared with every text of the vocabulary, in float64; of larger
ones with substitutions drawn at random, and chosen greedily one after the other. Then small models
are trained on parts of IMDb and AG News, some of them for the proof, exported, and proved on texts
of the test set, one thread; beside what is proved stands what the attacks `worst-pieces` and
`worst-words` leave. Words are mistyped, or become one of a table of words that stand in like
contexts in the training texts: neighbors and no synonyms, for no table of synonyms is shipped.
The bag of pieces is the plain reference: it does not see where a piece stands, and the other
models see each piece's position, but no interaction between pieces.
"""

import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import nn

import models
from benchmarks.support import proved_texts
from benchmarks.support.proved_texts import EDITS, MODELS
from benchmarks.support.rows import Row, figure
from benchmarks.support.word_neighbors import neighbor_table
from core.stats import wilson
from models.analysis.substitutions import Substitutions as Table
from robustness.attacks.base import Batch, Search
from robustness.certificates.substitutions import Substitutions
from robustness.target import torch_threads
from robustness.text_target import TextTarget

_SEQUENCES = 1000  # attacked at random and greedily
_BY_WORDS = ("plain", "replaced")  # models that are proved against other words, too
_RATE = 1000  # texts a minute that should be reached


def run(
    texts: int = 300,
    parts: tuple[str, ...] = ("checks", "imdb", "ag-news"),
    trained: tuple[str, ...] = tuple(MODELS),
) -> Iterable[Row]:
    """Compare with brute force and attacks, then train and prove.

    Args:
        texts: of each source.
        parts: checks against brute force, imdb, ag-news.
        trained: which models.
    """
    if "checks" in parts:
        yield _brute_force()
        yield _attacked()
    for source in [part for part in parts if part != "checks"]:
        with tempfile.TemporaryDirectory() as folder, torch_threads(1):
            data = proved_texts.write_part(source, Path(folder) / "data")
            for number, model in enumerate(trained):
                own = Path(folder) / str(number)
                own.mkdir()
                target, seconds = proved_texts.trained(source, model, data, own)
                case = f"{source}, {model}"
                yield figure(f"{case}, training", seconds, "s")
                batch = proved_texts.some_texts(source, texts, target.labels)
                if model == "plain":
                    yield from _speed(case, target, batch)
                yield from proved_texts.shares(case, target, batch)
                if model in _BY_WORDS:
                    table = neighbor_table(data / "train.csv", batch.texts)
                    yield from proved_texts.word_shares(case, target, batch, table)


def _tiny(seed: int, **sizes: int) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = models.build("transject_random", num_experts=1, num_classes=3, **sizes)
        for name, parameter in model.named_parameters():
            if name.endswith((".r", "bias", ".b1", ".b2")):
                nn.init.normal_(parameter)
    return model.double().eval().requires_grad_(False)


def _margins(model: nn.Module, tokens: torch.Tensor, label: int) -> torch.Tensor:
    logits = model(tokens)
    return logits[:, label] - torch.cat((logits[:, :label], logits[:, label + 1 :]), 1).amax(1)


def _brute_force() -> Row:
    """Every text of five pieces of six, against all texts with up to three others."""
    wrong, cases = 0.0, 0
    everything = torch.tensor(list(product(range(6), repeat=5)))
    for seed in range(10):
        model = _tiny(seed, vocab_size=6, seq_len=5, embed_dim=8, depth=2)
        table = Table(model)
        text = everything[np.random.default_rng(seed).integers(len(everything))]
        changed = (everything != text).sum(1)
        for label in range(3):
            margins = _margins(model, everything, label)
            for count, found in zip((1, 2, 3), table.worst(text, label, (1, 2, 3)), strict=True):
                cases += 1
                wrong = max(wrong, abs(found.margin - float(margins[changed <= count].min())))
    case = f"tiny models, worst case and best of all {len(everything):,} texts: largest difference"
    return figure(case, wrong * 1e12, "1e-12 of a logit", target=1.0, samples=cases)


def _attacked() -> Row:
    """How often random and greedy substitutions get below the worst case."""
    model = _tiny(0, vocab_size=200, seq_len=40, embed_dim=16, depth=2)
    table, draw, beaten = Table(model), np.random.default_rng(0), 0
    for number in range(_SEQUENCES):
        length, count = int(draw.integers(5, 41)), int(draw.integers(1, 6))
        text, label = torch.from_numpy(draw.integers(0, 200, length)), int(draw.integers(3))
        [found] = table.worst(text, label, [count])
        made = (_greedy if number % 2 else _random)(model, text, label, count, draw)
        beaten += bool((_margins(model, made, label) < found.margin - 1e-9).any())
    spread = wilson(beaten, _SEQUENCES)
    case = "texts of 5 to 40 tokens, up to 5 random or greedy substitutions: below the worst case"
    return figure(case, beaten, "texts", target=0, samples=_SEQUENCES, spread=(0, spread[1] * 1000))


def _random(
    model: nn.Module, text: torch.Tensor, label: int, count: int, draw: np.random.Generator
) -> torch.Tensor:
    """64 texts with other pieces at random."""
    made = text.repeat(64, 1)
    for row in made:
        row[draw.permutation(len(text))[:count]] = torch.from_numpy(draw.integers(0, 200, count))
    return made


def _greedy(
    model: nn.Module, text: torch.Tensor, label: int, count: int, draw: np.random.Generator
) -> torch.Tensor:
    """Of 64 single substitutions the worst, again and again."""
    for _ in range(count):
        text = _best(model, _random(model, text, label, 1, draw), label)
    return text[None]


def _best(model: nn.Module, made: torch.Tensor, label: int) -> torch.Tensor:
    return made[int(_margins(model, made, label).argmin())]


def _speed(about: str, target: TextTarget, batch: Batch) -> Iterator[Row]:
    """How many texts are proved in a minute, and how far rounding may go and does."""
    proof, count = Substitutions(edits=EDITS), len(batch.texts)
    began = time.perf_counter()
    found = proof.prove(target, batch, proof.budgets()[0], Search(seeds=[]))
    yield figure(f"{about}, the table of pieces", time.perf_counter() - began, "s")
    began = time.perf_counter()
    for budget in proof.budgets()[1:]:
        proof.prove(target, batch, budget, Search(seeds=[]))
    pace = count * (len(EDITS) - 1) / (time.perf_counter() - began) * 60
    yield figure(f"{about}, proved", pace, "texts a minute", target=_RATE, better="higher")
    leads = target.predict(batch.texts).astype(np.float64)
    own = leads[np.arange(count), batch.labels]
    leads[np.arange(count), batch.labels] = -np.inf
    off = np.abs(own - leads.max(axis=1) - _clean_margins(target, batch)) / found["rounding"]
    case = f"{about}, rounding of the served graph, of what is allowed for at most"
    yield figure(case, float(off.max()), "times", target=1.0, samples=count)


def _clean_margins(target: TextTarget, batch: Batch) -> np.ndarray:
    """Margins (N,) of unchanged texts in float64."""
    table = Table(target.require_torch_model())
    rows = target.require_tokenizer().ids(batch.texts, target.max_len)
    return np.array(
        [
            table.worst(torch.from_numpy(row), int(label), [0])[0].margin
            for row, label in zip(rows, batch.labels, strict=True)
        ]
    )

"""What share of texts is proved where pieces see each other, by bounds of gates and eigenvalues?

Of tiny models the bound is compared with every text of the vocabulary, in float64; of larger ones
with substitutions drawn at random, and chosen greedily one after the other. Small models are then
trained on IMDb for one epoch, and proved on texts of the test set, one thread. What nothing broke
is stated beside what is proved: each text is tried with the substitutions that were worst in its
bound, so that what lies between is open. The figures are those of these models, not of the shipped
ones.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import models
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT
from core.stats import wilson
from data.sources import open_texts
from models.analysis.bounds import Bounds
from robustness.attacks.base import Batch, Search
from robustness.certificates.substitutions import Substitutions
from robustness.target import torch_threads
from robustness.text_target import TextTarget, open_model
from runtimes.artifact import open_artifact

_SEQUENCES = 400  # attacked at random and greedily
_EDITS = [1, 2, 5, 10]
_SMALL = "model.embed_dim=64 train.epochs=1 train.lr=0.002"
_TRAINED = {  # what is bounded; variant, layers, experts
    "transject-1-1": "computed eigenvalues, one layer",
    "transject-2-1": "computed eigenvalues, two layers",
    "transject-random-1-2": "two experts, one layer",
    "transject-random-2-2": "two experts, two layers",
    "transject-random-1-4": "four experts, one layer",
}


def run(
    texts: int = 200, kept: str = "", parts: tuple[str, ...] = ("checks", *_TRAINED)
) -> Iterable[Row]:
    """Compare with brute force and attacks, then prove.

    Args:
        texts: of IMDb.
        kept: folder in which trained models are kept, and looked for.
        parts: what is run: checks, and models by variant, layers and experts.
    """
    if "checks" in parts:
        yield _brute_force()
        yield _attacked()
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        for name in (part for part in parts if part != "checks"):
            path, case = _trained(Path(kept or folder).resolve(), name), _TRAINED[name]
            target = open_model(open_artifact(path), threads=1)
            if not isinstance(target, TextTarget):
                raise ValueError(f"artifact must read texts, got {path}")
            yield from _proved(target, case, texts)


def _tiny(seed: int, **sizes: int) -> nn.Module:
    """A model of three classes, whose statistics matter."""
    experts = (2, 3, 1, 2)[seed % 4]
    name = "transject_random" if seed % 4 < 2 else "transject"
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = models.build(name, num_experts=experts, num_classes=3, **sizes)
        for key, parameter in model.named_parameters():
            if key.endswith((".r", "bias", ".b1", ".b2")):
                nn.init.normal_(parameter, std=0.3)
    return model.double().eval().requires_grad_(False)


def _margins(model: nn.Module, tokens: Tensor, label: int) -> Tensor:
    logits = model(tokens)
    return logits[:, label] - torch.cat((logits[:, :label], logits[:, label + 1 :]), 1).amax(1)


def _brute_force() -> Row:
    """Every text of five pieces of six, against the bound for up to three others."""
    beaten, cases = 0, 0
    everything = torch.tensor(list(product(range(6), repeat=5)))
    for seed in range(16):
        model = _tiny(seed, vocab_size=6, seq_len=5, embed_dim=8, depth=1 + seed % 3 // 2)
        bounds = Bounds(model)
        text = everything[np.random.default_rng(seed).integers(len(everything))]
        changed = (everything != text).sum(1)
        for label in range(3):
            margins = _margins(model, everything, label)
            for count, found in zip((1, 2, 3), bounds.worst(text, label, (1, 2, 3)), strict=True):
                cases += 1
                beaten += float(margins[changed <= count].min()) < found.margin - 1e-9
    case = f"tiny models, best of all {len(everything):,} texts: below the bound"
    return figure(case, beaten, "texts", target=0, samples=cases)


def _attacked() -> Row:
    """How often random and greedy substitutions get below the bound."""
    draw, beaten = np.random.default_rng(0), 0
    known = [_tiny(seed, vocab_size=200, seq_len=40, embed_dim=16, depth=2) for seed in range(4)]
    bounds = [Bounds(model) for model in known]
    for number in range(_SEQUENCES):
        model, length = known[number % 4], int(draw.integers(5, 41))
        count, label = int(draw.integers(1, 6)), int(draw.integers(3))
        text = torch.from_numpy(draw.integers(0, 200, length))
        [found] = bounds[number % 4].worst(text, label, [count])
        for made in _changed(model, text, label, count, draw):
            beaten += float(_margins(model, made[None], label)) < found.margin - 1e-9
    cases = 2 * _SEQUENCES
    spread = wilson(beaten, cases)
    case = "texts of 5 to 40 tokens, up to 5 random or greedy substitutions: below the bound"
    return figure(case, beaten, "texts", target=0, samples=cases, spread=(0, spread[1] * cases))


def _changed(
    model: nn.Module, text: Tensor, label: int, count: int, draw: np.random.Generator
) -> Iterator[Tensor]:
    """The worst of 32 texts with other pieces at random; the worst of 32, again and again."""
    made = text.repeat(32, 1)
    for row in made:
        row[draw.permutation(len(text))[:count]] = torch.from_numpy(draw.integers(0, 200, count))
    yield made[int(_margins(model, made, label).argmin())]
    for _ in range(count):
        made = text.repeat(32, 1)
        for row in made:
            row[int(draw.integers(len(text)))] = int(draw.integers(200))
        text = made[int(_margins(model, made, label).argmin())]
    yield text


def _trained(folder: Path, name: str) -> Path:
    """The artifact of a small model, trained unless it is there."""
    variant, depth, experts = name.rsplit("-", 2)
    run, made = folder / name, folder / f"{name}.artifact"
    sizes = [f"model.depth={depth}", f"model.num_experts={experts}", *_SMALL.split()]
    recipe = ["recipes/imdb.yaml", f"variant={variant}", "size=small", *sizes]
    steps = [
        (run, ["training", "fit", *recipe, "--output", str(run)]),
        (made, ["export", str(run), "--no-program", "--output", str(made)]),
    ]
    for path, words in steps:
        if not path.exists():
            subprocess.run(
                [sys.executable, "-m", *words],
                cwd=ROOT,
                check=True,
                stdout=sys.stderr,
                env=os.environ,
            )
    return made


def _proved(target: TextTarget, case: str, count: int) -> Iterator[Row]:
    source = open_texts("imdb", label_names=target.labels)
    chosen = np.random.default_rng(0).choice(len(source), count, replace=False)
    part = source.take(sorted(chosen.tolist()))
    labels = np.asarray(part.labels, np.int64)
    batch, proof = Batch(inputs=list(part), labels=labels), Substitutions(edits=_EDITS)
    right = target.predict(batch.texts).argmax(axis=1) == labels
    about = f"width 64, {case}, {count} texts of IMDb"
    yield _share(f"{about}: clean accuracy", right)
    for budget in proof.budgets():
        found = proof.prove(target, batch, budget, Search(seeds=[]))
        replaced = f"{about}, {int(budget.value)} pieces replaced"
        yield _share(f"{replaced}: proved accuracy", right & (found["margin"] > found["rounding"]))
        yield _share(f"{replaced}: not broken", right & (_tried(target, batch, found) > 0))


def _tried(target: TextTarget, batch: Batch, found: dict[str, np.ndarray]) -> np.ndarray:
    """Margins (N,) of the model after the substitutions that were worst in each bound."""
    model, rows = target.require_torch_model(), target.require_tokenizer()
    margins = []
    for i, row in enumerate(rows.ids(batch.texts, target.max_len)):
        kept = found["places"][:, i] >= 0
        row[found["places"][kept, i]] = found["pieces"][kept, i]
        with torch.no_grad():
            tokens = torch.from_numpy(row.astype(np.int64))[None]
            margins.append(float(_margins(model, tokens, int(batch.labels[i]))))
    return np.array(margins)


def _share(case: str, held: np.ndarray) -> Row:
    count = int(held.sum())
    spread = wilson(count, len(held))
    share = count / len(held)
    return figure(case, share, "share", better="higher", samples=len(held), spread=spread)

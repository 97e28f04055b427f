"""Small models of texts, some of them trained to be proved, and how much is proved of each."""

import csv
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT
from core.stats import wilson
from data.sources import open_texts
from robustness.attacks.base import Batch, Search
from robustness.attacks.worst_pieces import WorstPieces
from robustness.attacks.worst_words import WorstWords
from robustness.certificates.substitutions import Substitutions
from robustness.certificates.words import Slips, Synonyms, WordProof
from robustness.text_target import TextTarget, open_model
from runtimes.artifact import open_artifact

EDITS = [1, 2, 5, 10]
WORDS = [1, 2, 5]
RECIPES = {"imdb": "imdb.yaml", "ag-news": "ag_news.yaml"}
_REPLACED, _BOUNDED, _BAG = "train.replaced=2", "model.token_bound=16", "model.positions=false"
MODELS = {
    "plain": (),
    "replaced": (_REPLACED,),
    "bounded": (_BOUNDED,),
    "bounded and replaced": (_BOUNDED, _REPLACED),
    "bag of pieces": (_BAG,),
    "bag of pieces, replaced": (_BAG, _REPLACED),
    **{f"replaced {count}": (f"train.replaced={count}",) for count in (1, 5, 10)},
}
"""By name the options of a recipe."""
_SIZES = (
    "size=small data.max_len=128 model.embed_dim=64 model.depth=1 model.num_experts=1 "
    "train.epochs=4 train.lr=0.005"
)
_LEARNT = 8_800  # texts at most
_HELD_OUT = 1_000  # of them, on which the exported graph is compared, too
_FEWER = 100  # texts whose words are proved
_TEST = 1_000  # texts that training ends with


def write_part(source: str, folder: Path) -> Path:
    """Write some texts of both splits to a new folder as csv files, drawn by a fixed seed."""
    folder.mkdir()
    for split, count in (("train", _LEARNT), ("test", _TEST)):
        texts = open_texts(source, split=split, own_split=True)
        chosen = np.random.default_rng(0).permutation(len(texts))[:count]
        part = texts.take(np.sort(chosen).tolist())
        names = [(part.label_names or [])[label] for label in np.asarray(part.labels).tolist()]
        with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *zip(part, names, strict=True)])
    return folder


def trained(source: str, model: str, data: Path, folder: Path) -> tuple[TextTarget, float]:
    """A model trained by the recipe, exported and opened; and the seconds of its training."""
    labels = open_texts(source, label_names=None).label_names
    recipe = [f"recipes/{RECIPES[source]}", "variant=transject-random", *_SIZES.split()]
    recipe += [f"data.source={data}", f"data.valid={_HELD_OUT}", f"labels={list(labels or [])}"]
    recipe += MODELS[model]
    began = time.perf_counter()
    _run("training", "fit", *recipe, "--output", str(folder / "run"))
    took = time.perf_counter() - began
    _run("export", str(folder / "run"), "--no-program", "--output", str(folder / "artifact"))
    return opened(folder / "artifact"), took


def opened(artifact: Path) -> TextTarget:
    """An artifact of texts, on one thread.

    Raises:
        ValueError: it reads something else.
    """
    target = open_model(open_artifact(artifact), threads=1)
    if not isinstance(target, TextTarget):
        raise ValueError(f"artifact must read texts, got {artifact}")
    return target


def some_texts(source: str, count: int, labels: list[str]) -> Batch:
    """Texts of the test split with their labels, drawn by a fixed seed."""
    texts = open_texts(source, split="test", label_names=labels)
    chosen = np.random.default_rng(0).choice(len(texts), count, replace=False)
    part = texts.take(np.sort(chosen).tolist())
    return Batch(inputs=list(part), labels=np.asarray(part.labels, np.int64))


def shares(case: str, target: TextTarget, batch: Batch) -> Iterator[Row]:
    """Clean accuracy, and for each number of pieces what is proved and what nothing broke."""
    right = target.predict(batch.texts).argmax(axis=1) == batch.labels
    yield share(f"{case}, clean accuracy", right)
    yield from _bracket(case, target, batch, Substitutions(edits=EDITS), WorstPieces(edits=EDITS))


def word_shares(
    case: str, target: TextTarget, batch: Batch, table: dict[str, list[str]]
) -> Iterator[Row]:
    """The same of the first texts with words mistyped, and with words of a table."""
    some = batch.take(np.arange(_FEWER))
    for proof, attack in [
        (Slips(edits=WORDS), WorstWords(edits=WORDS)),
        (Synonyms(edits=WORDS, table=table), WorstWords(edits=WORDS, table=table)),
    ]:
        yield from _bracket(case, target, some, proof, attack)


def _bracket(
    case: str,
    target: TextTarget,
    batch: Batch,
    proof: Substitutions | WordProof,
    attack: WorstPieces | WorstWords,
) -> Iterator[Row]:
    """For each budget what is proved and what the attack leaves."""
    right = target.predict(batch.texts).argmax(axis=1) == batch.labels
    search, beaten = Search(seeds=[]), 0
    for budget in proof.budgets():
        found = proof.prove(target, batch, budget, search)
        proved = right & (found["margin"] > found["rounding"])
        yield share(f"{case}, {proof.describe(budget)}, proved accuracy", proved)
        made = attack.run(target, batch, budget, search)
        held = right & (target.predict(made.texts).argmax(axis=1) == batch.labels)
        what = f"accuracy under {attack.name}"
        yield share(f"{case}, {proof.describe(budget)}, {what}", held)
        beaten += int((proved & ~held).sum())
    about = case if isinstance(proof, Substitutions) else f"{case}, {proof.name}"
    yield figure(f"{about}, proved texts that {attack.name} breaks", beaten, "texts", target=0)


def share(case: str, held: np.ndarray) -> Row:
    """A row about the share of texts that hold, with its interval."""
    count = int(held.sum())
    spread = wilson(count, len(held))
    return figure(
        case, count / len(held), "share", better="higher", samples=len(held), spread=spread
    )


def _run(*words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, check=True, stdout=sys.stderr, env=os.environ
    )

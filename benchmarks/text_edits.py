"""Do edits of single characters mislead a text model sooner than slips of the keyboard?

Charmer and Typos on the same short texts of IMDb's test set, with the same number of edits and the
same number of queries: long texts have more places than a thousand queries can probe. The sets
differ: Typos spares first letters and words of two letters, edits a word at most once, and its
swaps of two letters count as one edit there.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.support.rows import Row, figure
from core.stats import paired_interval, wilson
from data.sources import open_texts
from robustness.attacks.base import Batch, Search, input_seed
from robustness.attacks.charmer import Charmer
from robustness.attacks.text_search import EditAttack
from robustness.attacks.typos import Typos
from robustness.target import torch_threads
from robustness.text_target import TextTarget, open_model
from runtimes.artifact import open_artifact

_EDITS = (1, 3, 5)


def run(
    texts: int = 100,
    queries: int = 1000,
    characters: int = 400,
    artifact: str = "artifacts/imdb-transject",
) -> Iterable[Row]:
    """Attack with both.

    Args:
        texts: of IMDb, drawn from the test set.
        queries: model evaluations of one text at most.
        characters: of a text at most.
        artifact: what is attacked.
    """
    with torch_threads(1):
        target = open_model(open_artifact(Path(artifact)), threads=1)
        if not isinstance(target, TextTarget):
            raise ValueError(f"artifact must read texts, got {artifact}")
        source = open_texts("imdb", label_names=target.labels)
        short = [i for i, text in enumerate(source) if len(text) <= characters]
        chosen = np.random.default_rng(0).choice(short, texts, replace=False)
        part = source.take(sorted(chosen.tolist()))
        batch = Batch(inputs=list(part), labels=np.asarray(part.labels, np.int64))
        right = target.predict(batch.texts).argmax(1) == batch.labels
        yield _accuracy("not attacked", right)
        held = {kind: _held(kind, target, batch, right, queries) for kind in (Typos, Charmer)}
        for edits in _EDITS:
            both: list[np.ndarray] = []
            for kind, (needed, _) in held.items():
                both.append(right & (needed > edits))
                about = f"{kind.info.title}, {edits} edits, {queries} queries"
                yield _accuracy(about, both[-1])
            first, second = both
            only = int((first & ~second).sum()), int((second & ~first).sum())
            yield figure(
                f"Typos minus Charmer, {edits} edits, {queries} queries: robust accuracy",
                (only[0] - only[1]) / texts,
                "share",
                better="higher",
                samples=texts,
                spread=paired_interval(*only, texts),
            )
        for kind, (_, spent) in held.items():
            about = f"{kind.info.title}, {_EDITS[-1]} edits: queries of a text classified correctly"
            yield figure(about, spent[right].astype(float).tolist(), "queries")


def _accuracy(about: str, held: np.ndarray) -> Row:
    hits, texts = int(held.sum()), len(held)
    return figure(
        f"{about}: accuracy", hits / texts, "share", samples=texts, spread=wilson(hits, texts)
    )


def _held(
    kind: type[EditAttack], target: TextTarget, batch: Batch, right: np.ndarray, queries: int
) -> tuple[np.ndarray, np.ndarray]:
    """How many edits misled the model on each text (N,), infinite where none did; and queries."""
    attack = kind.model_validate({"edits": [_EDITS[-1]], "queries": queries})
    [budget] = attack.budgets()
    rows, needed = np.flatnonzero(right), np.full(len(right), np.inf)
    spent = np.zeros(len(right), np.int64)
    for row in rows.tolist():
        one = batch.take(np.array([row]))
        seeds = [input_seed(0, attack.label, one.texts[0].encode())]
        # More edits continue what fewer began, so that one run tells of all numbers.
        made = attack.run(target, one, budget, Search(seeds=seeds))
        if not attack.allowed(one, made, budget, target, seeds).all():
            raise ValueError(f"text {row} was changed more than it may be")
        spent[row] = made.found["queries"][0]
        if target.predict(made.texts).argmax(1)[0] != one.labels[0]:
            needed[row] = made.found["edits"][0]
    return needed, spent

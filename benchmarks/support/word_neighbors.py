"""Tables of words that stand in like contexts: neighbors and no synonyms, made from texts alone.

"good" and "bad" are neighbors: both stand before "film". So such a table is harder than one of
words that mean the same, and no model has a part in it.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_WORD = re.compile(r"[a-z]{3,}")
_COMMONEST = 30  # words such as "the", which are neither given neighbors nor given as ones
_WORDS = 4_000  # that are told apart
_WINDOW = 2
_DIMENSIONS = 100
_NEAREST = 8  # as in Alzantot et al. 2018


def neighbor_table(learnt: Path, texts: Iterable[str]) -> dict[str, list[str]]:
    """For each word of some texts the words that stand in the likest contexts.

    Contexts are the words up to two places away, weighted by positive pointwise mutual information
    and reduced to 100 dimensions (Levy and Goldberg 2014); the likest have the largest cosine.

    Args:
        learnt: a csv file with a column `text`, whose contexts are counted.
        texts: whose words the table is about.
    """
    with learnt.open(newline="", encoding="utf-8") as file:
        words = [_WORD.findall(row["text"].lower()) for row in csv.DictReader(file)]
    counted = Counter(word for text in words for word in text).most_common(_COMMONEST + _WORDS)
    known = {word: place for place, (word, _) in enumerate(counted)}
    vectors = _reduced(_information(_contexts(words, known)))
    asked = {word for text in texts for word in _WORD.findall(text.lower())}
    rows = [place for word, place in known.items() if word in asked and place >= _COMMONEST]
    likeness = vectors[rows] @ vectors.T
    likeness[:, :_COMMONEST] = -np.inf
    likeness[np.arange(len(rows)), rows] = -np.inf
    names = list(known)
    nearest = np.argsort(-likeness, axis=1, kind="stable")[:, :_NEAREST]
    return {names[row]: [names[i] for i in near] for row, near in zip(rows, nearest, strict=True)}


def _contexts(texts: Iterable[list[str]], known: dict[str, int]) -> np.ndarray:
    """How often words stand near each other, (V, V) float32."""
    counts = np.zeros((len(known), len(known)), np.float32)
    for text in texts:
        ids = np.array([known.get(word, -1) for word in text])
        for away in range(1, _WINDOW + 1):
            pair = np.stack([ids[:-away], ids[away:]])
            first, second = pair[:, (pair >= 0).all(axis=0)]
            np.add.at(counts, (first, second), 1)
            np.add.at(counts, (second, first), 1)
    return counts


def _information(counts: np.ndarray) -> np.ndarray:
    """Positive pointwise mutual information."""
    total = counts.sum()
    expected = counts.sum(1, keepdims=True) * (counts.sum(0, keepdims=True) / total)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.log(counts / expected), nan=0, neginf=0).clip(min=0)


def _reduced(weights: np.ndarray) -> np.ndarray:
    """Rows of length 1 in fewer dimensions, by a subspace iteration from a fixed start."""
    basis = np.random.default_rng(0).normal(size=(len(weights), _DIMENSIONS)).astype(np.float32)
    for _ in range(8):
        basis, _ = np.linalg.qr(weights @ basis)
    values, turn = np.linalg.eigh(basis.T @ weights @ basis)
    vectors = basis @ turn * np.sqrt(np.abs(values))
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

"""The exact worst case of words replaced by given others, whose numbers of pieces may differ.

The logits are a mean over tokens of g(piece, place), as for substitutions of pieces; but a word of
another length moves all that follows to other places, and changes the number by which the sum is
divided. So a dynamic program runs over the words: the least lead of the label over another class,
summed over the pieces so far, for each number of replaced words and each place that is reached. At
the end each sum is divided by its own number of pieces.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word and what may stand in its place.

    Attributes:
        pieces: (n,) int64, its own.
        others: (m, n) int64 for each number of pieces n, what it may become.
    """

    pieces: np.ndarray
    others: Sequence[np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstWords:
    """The worst that so many replaced words can do to one text.

    Attributes:
        margin: the label's logit minus the largest other one, in exact arithmetic.
        words: which are replaced, in their order.
        pieces: by which pieces each.
    """

    margin: float
    words: list[int]
    pieces: list[np.ndarray]


def worst_words(
    given: np.ndarray, bias: np.ndarray, words: Sequence[Word], label: int, counts: Sequence[int]
) -> list[WorstWords]:
    """The worst cases of at most so many replaced words.

    Args:
        given: (V, L, K) float64, what each piece adds at each place; pieces behind the L-th are
            not read.
        bias: (K,) of the logits.
        words: of the text, in their order, at least one.
        label: class that the text should keep.
        counts: numbers of replaced words.
    """
    found = [WorstWords(margin=math.inf, words=[], pieces=[]) for _ in counts]
    for other in set(range(len(bias))) - {label}:
        program = _Program(
            given[:, :, label] - given[:, :, other], words, min(max(counts), len(words))
        )
        for i, count in enumerate(counts):
            worst = program.worst(count, float(bias[label] - bias[other]))
            found[i] = min(found[i], worst, key=lambda one: one.margin)
    return found


class _Program:
    """Least sums of leads (V, L) by number of replaced words and place, with the way to each."""

    def __init__(self, lead: np.ndarray, words: Sequence[Word], most: int) -> None:
        self._lead, self._length = lead, lead.shape[1]
        self._sums = np.full((most + 1, self._length + 1), np.inf)
        self._sums[0, 0] = 0.0
        self._ways: list[dict[tuple[int, int], tuple[int, np.ndarray | None]]] = []
        for word in words:
            if np.isinf(self._sums[:, :-1]).all():  # everything read lies before this word
                break
            self._advance(word)

    def _advance(self, word: Word) -> None:
        """Pass a word: as it is, or replaced."""
        sums, self._sums = self._sums, np.full_like(self._sums, np.inf)
        self._sums[:, -1] = sums[:, -1]
        ways: dict[tuple[int, int], tuple[int, np.ndarray | None]] = {}
        starts = np.flatnonzero(np.isfinite(sums[:, :-1]).any(0))
        for number, rows in enumerate([word.pieces[None], *word.others]):
            best, chosen = self._best(rows, starts)
            replaced = int(number > 0)
            reached = sums[: len(sums) - replaced, starts] + best
            for column, start in enumerate(starts.tolist()):
                end = min(start + rows.shape[1], self._length)
                for row in np.flatnonzero(reached[:, column] < self._sums[replaced:, end]).tolist():
                    self._sums[row + replaced, end] = reached[row, column]
                    piece = rows[chosen[column]] if replaced else None
                    ways[row + replaced, end] = start, piece
        self._ways.append(ways)

    def _best(self, rows: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of pieces (m, n) the least sum from each start, (S,), and which it is, (S,)."""
        total = np.zeros((len(rows), len(starts)))
        for offset in range(rows.shape[1]):
            places = starts + offset
            read = places < self._length
            total[:, read] += self._lead[rows[:, offset, None], places[read]]
        return total.min(0), total.argmin(0)

    def worst(self, count: int, bias: float) -> WorstWords:
        """The least mean after at most `count` replaced words, with the difference of biases."""
        means = self._sums[: count + 1, 1:] / np.arange(1, self._length + 1)
        edits, place = np.unravel_index(int(means.argmin()), means.shape)
        words, pieces = [], []
        at = int(edits), int(place) + 1
        for number in reversed(range(len(self._ways))):
            way = self._ways[number].get(at)
            if way is None:  # the end was reached before this word
                continue
            if way[1] is not None:
                words.insert(0, number)
                pieces.insert(0, way[1])
            at = at[0] - (way[1] is not None), way[0]
        return WorstWords(margin=float(means[edits, place]) + bias, words=words, pieces=pieces)

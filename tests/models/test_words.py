"""The exact worst case of replaced words, against every text that they can make."""

from itertools import combinations, product

import numpy as np
import pytest

from models.analysis.words import Word, worst_words


def every_text(words: list[Word], count: int) -> list[list[int]]:
    """The pieces of all texts with at most so many words replaced."""
    found = []
    for size in range(count + 1):
        for places in combinations(range(len(words)), size):
            ways = [
                [row for rows in word.others for row in rows] if i in places else [word.pieces]
                for i, word in enumerate(words)
            ]
            found += [np.concatenate(each).tolist() for each in product(*ways)]
    return found


@pytest.mark.parametrize("length", [4, 7, 20])
def test_the_worst_case_is_that_of_all_texts(length: int) -> None:
    draw = np.random.default_rng(length)
    given, bias = draw.normal(size=(9, length, 3)), draw.normal(size=3) / 5
    given[:, length // 2 :] *= 3
    words = [
        Word(
            pieces=draw.integers(0, 9, draw.integers(1, 4)),
            others=[draw.integers(0, 9, (2, n)) for n in draw.permutation(4)[:2] + 1],
        )
        for _ in range(5)
    ]
    for label in range(3):
        found = worst_words(given, bias, words, label, [0, 1, 2, 3])
        for count, one in enumerate(found):
            margins = []
            for text in every_text(words, count):
                read = text[:length]
                logits = given[read, range(len(read))].mean(0) + bias
                margins.append(logits[label] - np.delete(logits, label).max())
            assert one.margin == pytest.approx(min(margins), abs=1e-12)
            made = [word.pieces for word in words]
            for place, pieces in zip(one.words, one.pieces, strict=True):
                made[place] = pieces
            read = np.concatenate(made)[:length]
            logits = given[read, range(len(read))].mean(0) + bias
            assert logits[label] - np.delete(logits, label).max() == pytest.approx(one.margin)
            assert len(one.words) <= count

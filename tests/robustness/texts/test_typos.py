from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from data.datasets.listops import value_of
from robustness.attacks.typos import typos
from robustness.logits import margin
from robustness.progress import Meter
from robustness.text_target import TextTarget


def slips(before: str, after: str) -> int:
    """Words that differ, each by one slip: a swap, or one letter more, fewer or other."""
    old, new = before.split(), after.split()
    assert len(old) == len(new)
    pairs = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
    for a, b in pairs:
        assert a[0] == b[0] and len(a) >= 3 and abs(len(a) - len(b)) <= 1
        head = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
        swapped = sorted(a) == sorted(b) and a[head + 2 :] == b[head + 2 :]
        longer = len(a) - len(b)
        rest = (a[head + (longer >= 0) :], b[head + (longer <= 0) :])
        assert swapped or rest[0] == rest[1], (a, b)
    return len(pairs)


def test_words_get_one_slip_each_within_the_budgets(bag: TextTarget, texts: list[str]) -> None:
    labels, seeds = bag.predict(texts).argmax(1), range(len(texts))
    for edits, queries in ((1, 200), (3, 200), (3, 9), (2, 1), (2, 3)):
        meter = Meter(10**6)
        found = typos(
            bag, texts, labels, edits=edits, queries=queries, seeds=seeds, leave=False, meter=meter
        )
        assert found.edits.max() <= edits and found.queries.max() <= queries
        assert meter.done == found.queries.sum()
        counts = [slips(*pair) for pair in zip(texts, found.texts, strict=True)]
        assert counts == found.edits.tolist()
        assert (found.labels == labels).all()


def test_the_word_that_matters_most_is_mistyped_first(bag: TextTarget, texts: list[str]) -> None:
    labels = bag.predict(texts).argmax(1)
    found = typos(bag, texts, labels, edits=1, queries=500, seeds=[1] * len(texts), leave=False)
    hits = 0
    for text, label, result in zip(texts, labels, found.texts, strict=True):
        words = text.split()
        places = [place for place, word in enumerate(words) if len(word) >= 3]
        without = [" ".join(words[:place] + words[place + 1 :]) for place in places]
        worst = places[int(margin(bag.predict(without), np.full(len(without), label)).argmin())]
        hits += words[worst] != result.split()[worst]
    # Where no slip of the first word makes the text worse, it is the turn of the next.
    assert hits >= len(texts) - 4


def test_the_seed_of_a_text_alone_decides(imdb: TextTarget) -> None:
    texts = ["A fine film, and wonderfully acted.", "The plot is thin; a waste of time, sadly."]
    labels = imdb.predict(texts).argmax(1)
    attack = partial(typos, imdb, edits=2, queries=100)
    both = attack(texts, labels, seeds=[7, 8])
    turned = attack(texts[::-1], labels[::-1], seeds=[8, 7])
    assert turned.texts == both.texts[::-1] and list(turned.queries) == list(both.queries[::-1])
    assert attack(texts, labels, seeds=[9, 9]).texts != both.texts


def test_more_edits_continue_what_fewer_began(bag: TextTarget, texts: list[str]) -> None:
    labels, seeds = bag.predict(texts).argmax(1), [3] * len(texts)
    one, three = (
        typos(bag, texts, labels, edits=edits, queries=500, seeds=seeds) for edits in (1, 3)
    )
    same = three.edits <= 1
    assert same.any() and [t for t, s in zip(three.texts, same, strict=True) if s] == [
        t for t, s in zip(one.texts, same, strict=True) if s
    ]


def test_what_the_model_does_not_read_is_left_alone(bag: TextTarget) -> None:
    short = replace(bag, max_len=3)
    text = "the film was 1234 it is " + "great acting " * 20
    [label] = short.predict([text]).argmax(1)
    found = typos(short, [text], [label], edits=9, queries=900, seeds=[0], leave=False)
    assert found.texts[0].split()[3:] == text.split()[3:]
    assert found.texts[0] != text


def test_texts_without_words_stay_as_they_are(bag: TextTarget) -> None:
    found = typos(bag, ["7/10 :)"], [0], edits=2, queries=50, seeds=[0], leave=False)
    assert found.texts == ["7/10 :)"] and found.queries.tolist() == [1]


def test_digits_of_expressions_are_mistyped_and_their_values_recomputed(
    listops_target: TextTarget, expressions: list[str]
) -> None:
    labels = [value_of(text) or 0 for text in expressions]
    seeds = range(len(labels))
    found = typos(
        listops_target, expressions, labels, edits=3, queries=300, seeds=seeds, leave=False
    )
    assert [value_of(text) for text in found.texts] == found.labels.tolist()
    assert (found.labels != labels).any() and (found.edits > 0).any()
    for before, after in zip(expressions, found.texts, strict=True):
        operators = [[w for w in text.split() if not w.isdigit()] for text in (before, after)]
        assert operators[0] == operators[1]


def test_wrong_arguments_are_named(bag: TextTarget) -> None:
    with pytest.raises(ValueError, match="seeds must be one per text, 1, got 2"):
        typos(bag, ["a film"], [0], edits=1, queries=9, seeds=[0, 1])
    with pytest.raises(ValueError, match="edits must be at least 1, got 0"):
        typos(bag, ["a film"], [0], edits=0, queries=9, seeds=[0])

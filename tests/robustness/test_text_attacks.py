"""HotFlip, Typos and Word Swap beyond what every attack promises."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from data.datasets.listops import value_of
from robustness.attacks.base import Batch, Search
from robustness.attacks.hotflip import HotFlip
from robustness.attacks.text_search import EditAttack
from robustness.attacks.typos import Typos
from robustness.attacks.word_swap import RATE, REPLACEMENT, WordSwap, swap_words
from robustness.logits import margin
from robustness.progress import Meter
from robustness.text_target import TextTarget

both = pytest.mark.parametrize("kind", [HotFlip, Typos])


def attack(
    kind: type[EditAttack | WordSwap],
    target: TextTarget,
    texts: list[str],
    labels: Any,
    *,
    seeds: list[int] | None = None,
    edits: int = 2,
    queries: int = 300,
    **search: Any,
) -> Batch:
    options = {"rate": ["0.3"]} if kind is WordSwap else {"edits": [edits], "queries": queries}
    one = kind.model_validate(options)
    [budget] = one.budgets()
    batch = Batch(inputs=texts, labels=np.array(labels, np.int64))
    own = Search(seeds=range(len(texts)) if seeds is None else seeds, **search)
    return one.run(target, batch, [budget], own)[budget]


def changed(target: TextTarget, before: str, after: str) -> int:
    """Tokens that differ, as the model reads both texts."""
    old, new = target.tokenizer.rows([before, after], target.max_len)
    assert len(old) == len(new)
    return int((old != new).sum())


def slips(_target: TextTarget, before: str, after: str) -> int:
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


@pytest.mark.parametrize(("kind", "count"), [(HotFlip, changed), (Typos, slips)])
def test_budgets_hold_and_the_model_reads_what_was_meant(
    kind: type[EditAttack], count: Callable[..., int], bag: TextTarget, texts: list[str]
) -> None:
    labels = bag.predict(texts).argmax(1)
    for edits, queries in ((1, 40), (2, 300), (3, 9), (4, 1), (4, 2)):
        meter = Meter(10**6)
        found = attack(
            kind, bag, texts, labels, edits=edits, queries=queries, leave=False, meter=meter
        )
        spent = found.found["queries"]
        assert found.found["edits"].max() <= edits and 1 <= spent.max() <= queries
        assert meter.done == spent.sum() and (found.labels == labels).all()
        pairs = zip(texts, found.texts, strict=True)
        assert [count(bag, *pair) for pair in pairs] == found.found["edits"].tolist()


@both
def test_more_edits_continue_what_fewer_began(
    kind: type[EditAttack], bag: TextTarget, texts: list[str]
) -> None:
    labels = bag.predict(texts).argmax(1)
    one, three = (attack(kind, bag, texts, labels, edits=edits, queries=2000) for edits in (1, 3))
    early = np.flatnonzero(three.found["edits"] <= 1)
    assert len(early) and [one.texts[i] for i in early] == [three.texts[i] for i in early]
    fooled = bag.predict(three.texts).argmax(1) != labels
    assert fooled.any()
    assert np.array_equal(
        bag.predict(one.texts).argmax(1) != labels, fooled & (three.found["edits"] <= 1)
    )


@both
def test_a_fooled_text_is_left_alone_unless_told_otherwise(
    kind: type[EditAttack], bag: TextTarget, texts: list[str]
) -> None:
    labels = 1 - bag.predict(texts).argmax(1)
    left = attack(kind, bag, texts, labels)
    assert left.texts == texts and (left.found["queries"] == 1).all()
    full = attack(kind, bag, texts, labels, leave=False)
    lower = margin(bag.predict(full.texts), labels) < margin(bag.predict(texts), labels)
    assert lower.mean() > 0.8 and (lower.all() or kind is Typos)


@both
def test_results_on_a_shipped_model_do_not_depend_on_other_texts(
    kind: type[EditAttack], imdb: TextTarget
) -> None:
    texts = ["A fine film, and wonderfully acted.", "The plot is thin; a waste of time, sadly."]
    labels = imdb.predict(texts).argmax(1)
    one = attack(kind, imdb, texts, labels, seeds=[7, 8])
    turned = attack(kind, imdb, texts[::-1], labels[::-1], seeds=[8, 7])
    assert turned.texts == one.texts[::-1] and one.texts != texts
    assert (turned.found["queries"] == one.found["queries"][::-1]).all()
    drawn = attack(kind, imdb, texts, labels, seeds=[9, 9]).texts != one.texts
    assert drawn == (kind is Typos)


@both
def test_expressions_keep_their_form_and_are_evaluated_anew(
    kind: type[EditAttack], listops_target: TextTarget, expressions: list[str]
) -> None:
    labels = [value_of(text) or 0 for text in expressions]
    found = attack(kind, listops_target, expressions, labels, edits=3, queries=600, leave=False)
    assert [value_of(text) for text in found.texts] == found.labels.tolist()
    assert (found.labels != labels).any() and found.found["edits"].any()
    with pytest.raises(ValueError, match="labels must be what the texts say"):
        attack(kind, listops_target, expressions[:1], [(labels[0] + 1) % 10])
    for before, after in zip(expressions, found.texts, strict=True):
        operators = [[w for w in text.split() if not w.isdigit()] for text in (before, after)]
        assert kind is HotFlip or operators[0] == operators[1]


@both
def test_a_label_that_is_no_class_is_refused(kind: type[EditAttack], bag: TextTarget) -> None:
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 2\), got 2"):
        attack(kind, bag, ["a film"], [2])


def test_one_edit_of_a_bag_of_words_is_the_best_there_is(bag: TextTarget, texts: list[str]) -> None:
    written = [text for text in bag.tokenizer.vocabulary().texts if text]
    labels = bag.predict(texts).argmax(1)
    found = attack(HotFlip, bag, texts, labels, edits=1, queries=10_000, leave=False)
    for text, label, result in zip(texts, labels, found.texts, strict=True):
        words = text.split()
        every = [
            " ".join([*words[:place], new, *words[place + 1 :]])
            for place in range(len(words))
            for new in written
        ]
        [old] = bag.tokenizer.rows([text], 24)
        rows = bag.tokenizer.rows(every, 24)
        single = [
            candidate
            for candidate, row in zip(every, rows, strict=True)
            if len(row) == len(old) and (row != old).sum() == 1
        ]
        best = margin(bag.predict(single), np.full(len(single), label)).min()
        assert margin(bag.predict([result]), np.array([label]))[0] == pytest.approx(best, abs=1e-6)
    assert (found.found["edits"] == 1).all() and (found.labels == labels).all()


@pytest.mark.parametrize("variant", ["stopped", "full"])
def test_bytes_are_replaced_where_they_are_written(elliptical: TextTarget, variant: str) -> None:
    texts = ["déjà vu: 3 €", "plain ascii\n"]
    labels = elliptical.predict(texts).argmax(1)
    found = attack(HotFlip, elliptical, texts, labels, queries=450, variant=variant)
    assert found.found["edits"].any()
    for before, after, edits in zip(texts, found.texts, found.found["edits"], strict=True):
        pairs = zip(before.encode(), after.encode(), strict=True)
        assert sum(a != b for a, b in pairs) == edits


def test_the_word_that_matters_most_is_mistyped_first(bag: TextTarget, texts: list[str]) -> None:
    labels = bag.predict(texts).argmax(1)
    found = attack(Typos, bag, texts, labels, edits=1, queries=500, leave=False)
    hits = 0
    for text, label, result in zip(texts, labels, found.texts, strict=True):
        words = text.split()
        places = [place for place, word in enumerate(words) if len(word) >= 3]
        without = [" ".join(words[:place] + words[place + 1 :]) for place in places]
        worst = places[int(margin(bag.predict(without), np.full(len(without), label)).argmin())]
        hits += words[worst] != result.split()[worst]
    # Where no slip of the first word makes the text worse, it is the turn of the next.
    assert hits >= len(texts) - 4


def test_what_the_model_does_not_read_is_left_alone(bag: TextTarget) -> None:
    short = replace(bag, max_len=3)
    text = "the film was 1234 it is " + "great acting " * 20
    found = attack(Typos, short, [text], short.predict([text]).argmax(1), edits=9, leave=False)
    assert found.texts[0].split()[3:] == text.split()[3:]
    assert found.texts[0] != text
    found = attack(Typos, bag, ["7/10 :)"], [0], leave=False)
    assert found.texts == ["7/10 :)"] and found.found["queries"].tolist() == [1]


def test_each_text_is_swapped_by_its_own_seed(bag: TextTarget, texts: list[str]) -> None:
    found = attack(WordSwap, bag, texts, [0] * len(texts))
    assert found.texts == [swap_words(text, rate=0.3, seed=i) for i, text in enumerate(texts)]
    assert found.found["edits"].tolist() == [text.split().count("AAA") for text in found.texts]
    assert found.found["edits"].any() and not found.found["queries"].any()
    same = attack(WordSwap, bag, ["AAA AAA"], [1])
    assert same.texts == ["AAA AAA"] and same.found["edits"].tolist() == [0]


def test_expressions_have_no_words_to_swap(
    listops_target: TextTarget, expressions: list[str]
) -> None:
    with pytest.raises(ValueError, match="word-swap must not be run on 'small'"):
        attack(WordSwap, listops_target, expressions[:1], [0])


TEXT = "  It was\n a <br /> fine film,   so very fine\tindeed! "


def test_only_words_change_and_blanks_stay() -> None:
    assert swap_words(TEXT, rate=1) == "  AAA AAA\n AAA AAA AAA AAA AAA   AAA AAA AAA\tAAA "
    assert swap_words(TEXT, rate=0) == TEXT
    assert swap_words("", rate=1) == "" and swap_words(" \n ", rate=0.5) == " \n "


def test_share_of_the_words_is_the_rate() -> None:
    long = " ".join(f"w{i}" for i in range(1000))
    assert swap_words(long, rate=RATE).split().count(REPLACEMENT) in (25, 26)
    short = [f"one two three four {i}" for i in range(4000)]
    swapped = [swap_words(text).split().count(REPLACEMENT) for text in short]
    assert set(swapped) == {0, 1}
    assert np.mean(swapped) == pytest.approx(5 * RATE, abs=0.02)


def test_every_word_is_as_likely_as_any_other() -> None:
    places = np.zeros(5)
    for seed in range(2000):
        places += [
            word == REPLACEMENT for word in swap_words("a b c d e", rate=0.4, seed=seed).split()
        ]
    assert places.sum() == 4000 and np.abs(places / 2000 - 0.4).max() < 0.05


def test_seed_and_text_decide_alone() -> None:
    text = " ".join(f"word{i}" for i in range(200))
    assert swap_words(text, seed=3) == swap_words(text, seed=3)
    assert swap_words(text, seed=3) != swap_words(text, seed=4)
    assert swap_words("lone \ud800 surrogate", rate=0) == "lone \ud800 surrogate"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 1.5}, r"rate must lie in \[0, 1\], got 1.5"),
        ({"rate": float("nan")}, "rate must lie in"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_wrong_options_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        swap_words("a text", **options)  # type: ignore[arg-type]

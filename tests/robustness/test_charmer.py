"""Charmer against every single edit there is, and the distance that is its budget."""

from string import ascii_lowercase
from typing import Any

import numpy as np

from robustness.attacks.base import Batch, Search
from robustness.attacks.charmer import Charmer, within
from robustness.logits import margin
from robustness.text_target import TextTarget


def attack(target: TextTarget, texts: list[str], labels: np.ndarray, **options: Any) -> Batch:
    one = Charmer.model_validate(options)
    [budget] = one.budgets()
    batch, search = Batch(inputs=texts, labels=labels), Search(seeds=range(len(texts)), leave=False)
    made = one.run(target, batch, budget, search)
    assert one.allowed(batch, made, budget, target, search.seeds).all()
    return made


def distance(first: str, second: str) -> int:
    """The whole table of Levenshtein's distance, row by row."""
    row = list(range(len(second) + 1))
    for i, own in enumerate(first, start=1):
        above, row = row, [i]
        for j, other in enumerate(second, start=1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (own != other)))
    return row[-1]


def neighbors(text: str) -> set[str]:
    """All texts one character away, with the letters that the attack knows."""
    letters, found = {*ascii_lowercase, *text}, set[str]()
    for i in range(len(text) + 1):
        found |= {text[:i] + one + text[i:] for one in letters}
        if i < len(text):
            found |= {text[:i] + one + text[i + 1 :] for one in letters | {""}}
    return found - {text}


def test_one_edit_is_the_worst_of_all_that_there_are(bag: TextTarget, texts: list[str]) -> None:
    texts = sorted(texts, key=len)[:2]
    labels = bag.predict(texts).argmax(1)
    found = attack(bag, texts, labels, edits=[1], queries=100_000, positions=1000)
    for text, label, made in zip(texts, labels, found.texts, strict=True):
        every = [one for one in neighbors(text) if bag.readable([one])[0]]
        least = margin(bag.predict(every), np.full(len(every), label)).min()
        np.testing.assert_allclose(margin(bag.predict([made]), np.array([label])), least, atol=1e-6)
        assert distance(text, made) == 1


def test_edits_and_queries_are_kept_to_and_more_edits_go_on(
    bag: TextTarget, texts: list[str]
) -> None:
    texts = texts[:6]
    labels = bag.predict(texts).argmax(1)
    before = margin(bag.predict(texts), labels)
    for edits, queries in ((1, 60), (3, 300), (4, 1), (4, 3)):
        found = attack(bag, texts, labels, edits=[edits], queries=queries)
        spent, moved = found.found["queries"], found.found["edits"]
        assert moved.max() <= edits and 1 <= spent.min() and spent.max() <= queries
        assert all(map(within, texts, found.texts, moved.tolist()))
        after = margin(bag.predict(found.texts), labels)
        assert (after < before)[moved > 0].all() and (after == before)[moved == 0].all()
    one, three = (attack(bag, texts, labels, edits=[n], queries=300) for n in (1, 3))
    same = three.found["edits"] <= 1
    assert [a == b for a, b in zip(one.texts, three.texts, strict=True)] == same.tolist()


def test_the_band_finds_the_distance_of_the_whole_table() -> None:
    draw = np.random.default_rng(0)
    words = ["".join(draw.choice(list("ab"), draw.integers(0, 8))) for _ in range(40)]
    for first, second in zip(words[:20], words[20:], strict=True):
        exact = distance(first, second)
        assert [within(first, second, k) for k in range(9)] == [exact <= k for k in range(9)]

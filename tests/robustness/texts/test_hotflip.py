from dataclasses import replace

import numpy as np
import pytest
import torch

from data.datasets.listops import value_of
from robustness.attacks.hotflip import hotflip
from robustness.logits import margin
from robustness.progress import Cancelled, Meter
from robustness.text_target import TextTarget


def changed(target: TextTarget, before: str, after: str) -> int:
    """Tokens that differ, as the model reads both texts."""
    old, new = target.tokenizer.rows([before, after], target.max_len)
    assert len(old) == len(new)
    return int((old != new).sum())


def test_one_edit_of_a_bag_of_words_is_the_best_there_is(bag: TextTarget, texts: list[str]) -> None:
    written = [text for text in bag.tokenizer.vocabulary().texts if text]
    labels = bag.predict(texts).argmax(1)
    found = hotflip(bag, texts, labels, edits=1, queries=10_000, leave=False)
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
    assert (found.edits == 1).all() and (found.labels == labels).all()


def test_budgets_hold_and_the_model_reads_what_was_meant(bag: TextTarget, texts: list[str]) -> None:
    labels = bag.predict(texts).argmax(1)
    for edits, queries in ((1, 40), (2, 300), (3, 7), (4, 1), (4, 2)):
        meter = Meter(10**6)
        found = hotflip(bag, texts, labels, edits=edits, queries=queries, leave=False, meter=meter)
        assert found.edits.max() <= edits and 1 <= found.queries.max() <= queries
        assert meter.done == found.queries.sum()
        for before, after, count in zip(texts, found.texts, found.edits, strict=True):
            assert changed(bag, before, after) == count


def test_more_edits_continue_what_fewer_began(bag: TextTarget, texts: list[str]) -> None:
    labels = bag.predict(texts).argmax(1)
    one, three = (hotflip(bag, texts, labels, edits=edits, queries=2000) for edits in (1, 3))
    short = [text for text, edits in zip(three.texts, three.edits, strict=True) if edits <= 1]
    assert short and set(short) <= set(one.texts)
    fooled = bag.predict(three.texts).argmax(1) != labels
    assert np.array_equal(bag.predict(one.texts).argmax(1) != labels, fooled & (three.edits <= 1))


def test_a_fooled_text_is_left_alone_unless_told_otherwise(
    bag: TextTarget, texts: list[str]
) -> None:
    labels = 1 - bag.predict(texts).argmax(1)
    left = hotflip(bag, texts, labels, edits=2, queries=500)
    assert left.texts == texts and (left.queries == 1).all() and not left.edits.any()
    full = hotflip(bag, texts, labels, edits=2, queries=500, leave=False)
    assert (margin(bag.predict(full.texts), labels) < margin(bag.predict(texts), labels)).all()


def test_results_do_not_depend_on_other_texts(imdb: TextTarget) -> None:
    texts = ["A fine film, and well acted.", "The plot is thin; a waste of time, sadly."]
    labels = imdb.predict(texts).argmax(1)
    both = hotflip(imdb, texts, labels, edits=2, queries=500)
    turned = hotflip(imdb, texts[::-1], labels[::-1], edits=2, queries=500)
    assert turned.texts == both.texts[::-1] and list(turned.queries) == list(both.queries[::-1])
    assert (imdb.predict(both.texts).argmax(1) != labels).all()
    assert [changed(imdb, *pair) for pair in zip(texts, both.texts, strict=True)] == list(
        both.edits
    )


@pytest.mark.parametrize("variant", ["stopped", "full"])
def test_bytes_are_replaced_where_they_are_written(elliptical: TextTarget, variant: str) -> None:
    texts = ["déjà vu: 3 €", "plain ascii\n"]
    labels = elliptical.predict(texts).argmax(1)
    found = hotflip(elliptical, texts, labels, edits=2, queries=450, variant=variant)  # type: ignore[arg-type]
    assert found.edits.sum() > 0
    for before, after, edits in zip(texts, found.texts, found.edits, strict=True):
        pairs = zip(before.encode(), after.encode(), strict=True)
        assert sum(a != b for a, b in pairs) == edits


def test_expressions_keep_their_form_and_are_evaluated_anew(
    listops_target: TextTarget, expressions: list[str]
) -> None:
    labels = [value_of(text) or 0 for text in expressions]
    found = hotflip(listops_target, expressions, labels, edits=3, queries=600, leave=False)
    assert [value_of(text) for text in found.texts] == found.labels.tolist()
    assert (found.labels != labels).any() and (found.edits > 0).all()
    with pytest.raises(ValueError, match="labels must be what the texts say"):
        hotflip(listops_target, expressions[:1], [(labels[0] + 1) % 10], edits=1, queries=9)


def test_nothing_global_changes_and_cancel_is_heeded(bag: TextTarget, texts: list[str]) -> None:
    torch_model = bag.require_torch_model().train()
    labels = replace(bag, torch_model=None).predict(texts).argmax(1)
    state, draws = torch.get_rng_state(), str(np.random.get_state())
    meter = Meter(10**6, should_stop=lambda: meter.done >= 60)
    with pytest.raises(Cancelled):
        hotflip(bag, texts, labels, edits=3, queries=500, leave=False, meter=meter)
    assert meter.done < 60 + 32
    assert torch.equal(torch.get_rng_state(), state)
    assert str(np.random.get_state()) == draws
    assert torch_model.training and all(
        p.grad is None and p.requires_grad for p in torch_model.parameters()
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edits": 0}, "edits must be at least 1, got 0"),
        ({"queries": 0}, "queries must be at least 1, got 0"),
        ({"labels": [0, 1]}, "labels must be one per text, 1, got 2"),
        ({"labels": [2]}, r"labels must lie in \[0, 2\), got 2"),
    ],
)
def test_wrong_arguments_are_named(bag: TextTarget, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hotflip(bag, ["a film"], **{"labels": [0], "edits": 1, "queries": 9} | options)

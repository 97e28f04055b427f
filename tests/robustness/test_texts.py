"""Text models under attack: HotFlip, Typos and Word Swap, and the model that they see."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import models
from data.datasets.listops import TOKENS, value_of
from data.token_set import Ragged
from data.tokenizer import byte_tokenizer, listops_tokenizer
from export.samples import Samples
from export.write import write_artifact
from robustness.attacks.base import Batch, Search
from robustness.attacks.hotflip import HotFlip
from robustness.attacks.text_search import EditAttack
from robustness.attacks.typos import Typos
from robustness.attacks.word_swap import WordSwap, swap_words
from robustness.logits import margin
from robustness.progress import Cancelled, Meter
from robustness.text_target import TextTarget, open_model, reads_listops
from runtimes.artifact import open_artifact
from runtimes.manifest import TextSpec
from service.predictions.served import pad
from service.settings import ROOT
from tests.robustness.conftest import run_of, target_of, undisturbed

both = pytest.mark.parametrize("kind", [HotFlip, Typos])


def sequence_model(name: str = "lra_transformer", **sizes: int) -> nn.Module:
    sizes = {"vocab_size": 16, "num_classes": 10, **sizes}
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = models.build(name, seq_len=64, embed_dim=16, depth=2, num_heads=2, **sizes)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.4)
    return model.eval()


@pytest.fixture
def elliptical() -> TextTarget:
    model = sequence_model("lra_transformer_elliptical", vocab_size=257, num_classes=3)
    return target_of(model, byte_tokenizer(), ["a", "b", "c"], max_len=64)


@pytest.fixture
def listops_target() -> TextTarget:
    target = target_of(sequence_model(), listops_tokenizer(), TOKENS[:10], max_len=64)
    return replace(target, relabel=value_of)


def expression(draw: np.random.Generator, depth: int = 1) -> str:
    parts = [
        expression(draw, depth + 1) if depth < 3 and draw.random() < 0.3 else str(draw.integers(10))
        for _ in range(draw.integers(2, 4))
    ]
    return " ".join([TOKENS[draw.integers(10, 14)], *parts, "]"])


def attack(
    kind: type[EditAttack | WordSwap], target: TextTarget, texts: list[str], labels: Any,
    *, edits: int = 2, queries: int = 300, **search: Any,
) -> Batch:  # fmt: skip
    options = {"rate": ["0.3"]} if kind is WordSwap else {"edits": [edits], "queries": queries}
    one = kind.model_validate(options)
    [budget] = one.budgets()
    batch = Batch(inputs=texts, labels=np.array(labels, np.int64))
    own = Search(seeds=search.pop("seeds", range(len(texts))), **search)
    return one.run(target, batch, budget, own)


def changed(target: TextTarget, before: str, after: str) -> int:
    """Tokens that differ, as the model reads both texts."""
    old, new = target.require_tokenizer().rows([before, after], target.max_len)
    assert len(old) == len(new)
    return int((old != new).sum())


def slips(_target: TextTarget, before: str, after: str) -> int:
    """Words that differ, each by one slip: a swap, or one letter more, fewer or other."""
    pairs = [(a, b) for a, b in zip(before.split(), after.split(), strict=True) if a != b]
    for a, b in pairs:
        assert a[0] == b[0] and len(a) >= 3 and abs(len(a) - len(b)) <= 1
        head = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
        swapped = sorted(a) == sorted(b) and a[head + 2 :] == b[head + 2 :]
        longer = len(a) - len(b)
        assert swapped or a[head + (longer >= 0) :] == b[head + (longer <= 0) :], (a, b)
    return len(pairs)


@pytest.mark.parametrize(("kind", "count"), [(HotFlip, changed), (Typos, slips)])
def test_budgets_hold_and_the_model_reads_what_was_meant(
    kind: type[EditAttack], count: Callable[..., int], bag: TextTarget, texts: list[str]
) -> None:
    labels = bag.predict(texts).argmax(1)
    for edits, queries in ((1, 40), (2, 300), (3, 9), (4, 1), (4, 2)):
        limits, meter = {"edits": edits, "queries": queries}, Meter(10**6)
        found = attack(kind, bag, texts, labels, leave=False, meter=meter, **limits)
        spent = found.found["queries"]
        assert found.found["edits"].max() <= edits and 1 <= spent.max() <= queries
        assert meter.done == spent.sum() and (found.labels == labels).all()
        pairs = zip(texts, found.texts, strict=True)
        assert [count(bag, *pair) for pair in pairs] == found.found["edits"].tolist()


@both
def test_more_edits_continue_what_fewer_began_and_seeds_are_those_of_typos(
    kind: type[EditAttack], bag: TextTarget, texts: list[str]
) -> None:
    labels = bag.predict(texts).argmax(1)
    one, three = (attack(kind, bag, texts, labels, edits=edits, queries=2000) for edits in (1, 3))
    early = np.flatnonzero(three.found["edits"] <= 1)
    assert len(early) and [one.texts[i] for i in early] == [three.texts[i] for i in early]
    fooled = bag.predict(three.texts).argmax(1) != labels
    alone = bag.predict(one.texts).argmax(1) != labels
    assert fooled.any() and np.array_equal(alone, fooled & (three.found["edits"] <= 1))
    other = attack(kind, bag, texts, labels, edits=1, queries=2000, seeds=range(20, 32))
    assert (other.texts != one.texts) == (kind is Typos)


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
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 2\), got 2"):
        attack(kind, bag, ["a film"], [2])


@both
def test_expressions_keep_their_form_and_are_evaluated_anew(
    kind: type[EditAttack], listops_target: TextTarget
) -> None:
    draw = np.random.default_rng(1)
    expressions = [expression(draw) for _ in range(8)]
    labels = [value_of(text) or 0 for text in expressions]
    found = attack(kind, listops_target, expressions, labels, edits=3, queries=600, leave=False)
    assert [value_of(text) for text in found.texts] == found.labels.tolist()
    assert (found.labels != labels).any() and found.found["edits"].any()
    with pytest.raises(ValueError, match="labels must be what the texts say"):
        attack(kind, listops_target, expressions[:1], [(labels[0] + 1) % 10])
    for pair in zip(expressions, found.texts, strict=True):
        operators = [[word for word in text.split() if not word.isdigit()] for text in pair]
        assert kind is HotFlip or operators[0] == operators[1]


def test_one_edit_of_a_bag_of_words_is_the_best_there_is(bag: TextTarget, texts: list[str]) -> None:
    written = [text for text in bag.require_tokenizer().vocabulary().texts if text]
    labels = bag.predict(texts[:6]).argmax(1)
    found = attack(HotFlip, bag, texts[:6], labels, edits=1, queries=10_000, leave=False)
    for text, label, result in zip(texts, labels, found.texts, strict=False):
        words = text.split()
        every = [
            " ".join([*words[:place], new, *words[place + 1 :]])
            for place in range(len(words))
            for new in written
        ]
        old, *rows = bag.require_tokenizer().rows([text, *every], 24)
        near = [len(row) == len(old) and (row != old).sum() == 1 for row in rows]
        single = [candidate for candidate, fits in zip(every, near, strict=True) if fits]
        best = margin(bag.predict(single), np.full(len(single), label)).min()
        assert margin(bag.predict([result]), np.array([label]))[0] == pytest.approx(best, abs=1e-6)
    assert (found.found["edits"] == 1).all()


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


def test_each_text_is_swapped_by_its_own_seed(
    bag: TextTarget, texts: list[str], listops_target: TextTarget
) -> None:
    found = attack(WordSwap, bag, texts, [0] * len(texts))
    assert found.texts == [swap_words(text, rate=0.3, seed=i) for i, text in enumerate(texts)]
    assert found.found["edits"].tolist() == [text.split().count("AAA") for text in found.texts]
    assert found.found["edits"].any() and not found.found["queries"].any()
    same = attack(WordSwap, bag, ["AAA AAA"], [1])
    assert same.texts == ["AAA AAA"] and same.found["edits"].tolist() == [0]
    with pytest.raises(ValueError, match="word-swap must not be run on 'small'"):
        attack(WordSwap, listops_target, ["[MAX 1 2 ]"], [0])


def test_only_words_change_and_blanks_stay() -> None:
    text = "  It was\n a <br /> fine film,   so very fine\tindeed! "
    assert swap_words(text, rate=1) == "  AAA AAA\n AAA AAA AAA AAA AAA   AAA AAA AAA\tAAA "
    for same in (text, "", " \n ", "lone \ud800 surrogate"):
        assert swap_words(same, rate=0) == same


def test_share_of_the_words_is_the_rate_and_all_are_as_likely() -> None:
    long = " ".join(f"w{i}" for i in range(1000))
    assert swap_words(long).split().count("AAA") in (25, 26)
    assert swap_words(long, seed=3) == swap_words(long, seed=3) != swap_words(long, seed=4)
    short = [swap_words(f"one two three four {i}").split().count("AAA") for i in range(4000)]
    assert set(short) == {0, 1} and np.mean(short) == pytest.approx(5 * 0.025, abs=0.02)
    swapped = [swap_words("a b c d e", rate=0.4, seed=seed).split() for seed in range(2000)]
    places = np.sum([[word == "AAA" for word in words] for words in swapped], axis=0)
    assert places.sum() == 4000 and np.abs(places / 2000 - 0.4).max() < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 1.5}, r"rate must lie in \[0, 1\], got 1.5"),
        ({"rate": float("nan")}, "rate must lie in"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        swap_words("a text", **options)


def test_texts_take_the_way_of_the_service_and_padding_does_not_matter() -> None:
    imdb = open_model(open_artifact(ROOT / "artifacts" / "imdb-transject"), threads=1)
    assert isinstance(imdb, TextTarget)
    texts = ["A moving film, brilliantly acted.", "Dull.", "I left<br />after ten minutes. " * 90]
    rows = imdb.require_tokenizer().rows(texts, imdb.max_len)
    assert len(rows[2]) == imdb.max_len == 512
    read = pad([rows[:2], rows[2:]], most=imdb.max_len)
    assert np.array_equal(imdb.predict(texts), imdb.runtime.predict(read))
    assert imdb.relabel is None and not reads_listops(imdb.require_tokenizer(), TOKENS[:10])


def test_every_batch_is_counted_and_can_be_the_last(bag: TextTarget, texts: list[str]) -> None:
    meter = Meter(100)
    assert bag.predict(texts * 6, meter).shape == (72, 2) and meter.done == 72
    stopping = Meter(100, should_stop=lambda: stopping.done > 0)
    with pytest.raises(Cancelled):
        bag.predict(texts * 6, stopping)
    assert stopping.done == 32


@pytest.mark.parametrize(
    ("text", "message"),
    [("a \ud800", "texts must be Unicode, but text 1 has half a"), (" ", "every text must hold a")],
)
def test_a_text_that_cannot_be_read_is_refused(bag: TextTarget, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bag.predict(["fine", text])


def test_gradient_is_the_slope_of_the_margin_and_stops_at_m_or_not(elliptical: TextTarget) -> None:
    torch_model = elliptical.require_torch_model().double()
    tokens = np.frombuffer(b"abcdefgh", np.uint8).astype(np.int64)
    stopped, full = (elliptical.margin_gradient(tokens, 1, variant=v) for v in elliptical.variants)
    assert elliptical.variants == ("stopped", "full")
    assert np.abs(stopped - full).max() > 1e-3 * np.abs(full).max()
    weight = elliptical.embedding().weight
    for place, column in ((0, 0), (3, 7), (7, 15)):
        margins = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                weight[tokens[place], column] += step
                logits = torch_model(torch.from_numpy(tokens)[None])[0]
                weight[tokens[place], column] -= step
            margins.append(float(logits[1] - max(logits[0], logits[2])))
        assert full[place, column] == pytest.approx((margins[0] - margins[1]) / 2e-5, rel=1e-4)


def test_a_gradient_that_fails_changes_nothing(bag: TextTarget) -> None:
    with undisturbed(bag.require_torch_model()), pytest.raises(IndexError):
        bag.margin_gradient(np.array([3, 4]), 5, variant="plain")


def test_without_embeddings_hotflip_is_impossible(bag: TextTarget) -> None:
    with pytest.raises(ValueError, match="need a differentiable model, but 'small'"):
        replace(bag, torch_model=None).embedding()
    twice = nn.ModuleList([nn.Embedding(3, 2), nn.Embedding(3, 2)])
    with pytest.raises(ValueError, match="one table of embeddings, but 'small' has 2"):
        replace(bag, torch_model=twice).embedding()


@pytest.mark.slow
def test_labels_of_an_exported_model_of_expressions_are_recomputed(tmp_path: Path) -> None:
    tokenizer, draw = listops_tokenizer(), np.random.default_rng(0)
    assert not reads_listops(tokenizer, TOKENS[:9])
    expressions = [expression(draw) for _ in range(1000)]
    folder = tmp_path / "run-digits"
    run = run_of(folder, "lra_transformer", sequence_model(), TOKENS[:10], TextSpec(max_len=64))
    tokenizer.save(folder / "tokenizer.json")
    rows = Ragged.of(tokenizer.rows(expressions, 64), np.uint32)
    samples = Samples(inputs=rows, pad=tokenizer.pad, labels=None, description="made")
    artifact = write_artifact(run, samples, tmp_path / "artifact", program=False)
    target = open_model(artifact, threads=1)
    assert isinstance(target, TextTarget) and target.relabel is value_of
    served, own = (ask(expressions[:5]) for ask in (target.predict, target.predict_torch))
    np.testing.assert_allclose(served, own, atol=1e-4)

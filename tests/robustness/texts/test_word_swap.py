import pytest

from robustness.attacks.word_swap import swap_words, word_swap
from robustness.text_target import TextTarget


def test_each_text_is_swapped_by_its_own_seed(bag: TextTarget, texts: list[str]) -> None:
    seeds = range(len(texts))
    found = word_swap(bag, texts, [0] * len(texts), rate=0.3, seeds=seeds)
    assert found.texts == [
        swap_words(t, rate=0.3, seed=s) for t, s in zip(texts, seeds, strict=True)
    ]
    assert found.edits.tolist() == [text.split().count("AAA") for text in found.texts]
    assert found.edits.any() and not found.queries.any()


def test_a_word_that_is_the_replacement_already_is_no_edit(bag: TextTarget) -> None:
    found = word_swap(bag, ["AAA film"], [1], rate=1, seeds=[0])
    assert found.texts == ["AAA AAA"] and found.edits.tolist() == found.labels.tolist() == [1]


def test_expressions_have_no_words_to_swap(
    listops_target: TextTarget, expressions: list[str]
) -> None:
    with pytest.raises(ValueError, match="word-swap must not be run on 'small'"):
        word_swap(listops_target, expressions[:1], [0], rate=0.1, seeds=[0])

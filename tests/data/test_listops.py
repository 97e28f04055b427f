import numpy as np
import pytest

from data.datasets.listops import (
    PAD,
    TOKENS,
    draw_block,
    evaluate,
    sample_trees,
    value_of,
    verify,
    written,
)

_IDS = {text: index for index, text in enumerate(TOKENS)}


def tokens_of(text: str) -> np.ndarray:
    return np.array([_IDS[word] for word in text.split()], np.uint8)


def parse(words: list[str], depth: int = 1) -> tuple[int, int]:
    """Value and depth of the tree that the words begin with, by recursion; takes them away."""
    word = words.pop(0)
    if word.isdigit():
        return int(word), depth
    values, depths = [], []
    while words[0] != "]":
        value, deepest = parse(words, depth + 1)
        values.append(value)
        depths.append(deepest)
    words.pop(0)
    assert 2 <= len(values) <= 10
    result = {
        "[MIN": min(values),
        "[MAX": max(values),
        "[MED": int(np.median(values)),
        "[SM": sum(values) % 10,
    }[word]
    return result, max(depths)


@pytest.fixture(scope="module")
def drawn() -> tuple[list[np.ndarray], list[int]]:
    trees, values = draw_block(seed=0, number=0)
    return [trees[index] for index in range(len(trees))], values.tolist()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[MIN 3 9 5 ]", 3),
        ("[MAX 3 9 5 ]", 9),
        ("[MED 3 9 5 ]", 5),
        ("[MED 1 8 4 5 ]", 4),
        ("[MED 9 8 ]", 8),
        ("[SM 7 8 9 ]", 4),
        ("[MAX 2 [SM 9 9 ] [MED 1 [MIN 5 6 ] 7 ] 0 ]", 8),
    ],
)
def test_tree_has_the_value_of_its_operations(text: str, value: int) -> None:
    assert evaluate(tokens_of(text)) == value
    verify(tokens_of(text), value)
    with pytest.raises(ValueError, match=f"a tree labeled {value + 1} has the value {value}"):
        verify(tokens_of(text), value + 1)


@pytest.mark.parametrize(
    "text",
    ["[MIN 1 2", "1 2", "[MIN ]", "[MIN 1 ]", "[SM" + " 1" * 11 + " ]", "1 ]", "[MIN 1 2 ] ]", ""],
)
def test_what_is_no_tree_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="tokens must be one tree"):
        evaluate(tokens_of(text))
    assert value_of(text) is None


def test_value_of_a_text_is_that_of_its_tokens(drawn: tuple[list[np.ndarray], list[int]]) -> None:
    for tokens, value in list(zip(*drawn, strict=True))[:40]:
        assert value_of(written(tokens)) == value
    assert written(tokens_of("[MAX 4 [MIN 2 3 ] ]")) == "[MAX 4 [MIN 2 3 ] ]"
    assert value_of(" [SM 7\t8\n 9 ] ") == 4
    for text in ("[MIN 1 22 ]", "[MEAN 1 2 ]", "[MIN 1 2]", "min 1 2", "[PAD]"):
        assert value_of(text) is None


def test_every_tree_is_within_the_rules_and_has_its_value_by_another_evaluation(
    drawn: tuple[list[np.ndarray], list[int]],
) -> None:
    lengths = np.array([len(tokens) for tokens in drawn[0]])
    assert lengths.min() > 500 and lengths.max() < 2000
    assert all(tokens.max() < PAD for tokens in drawn[0])
    for tokens, value in list(zip(*drawn, strict=True))[:60]:
        words = [TOKENS[token] for token in tokens]
        found, depth = parse(words)
        assert found == value and not words and depth <= 10


def test_distribution_is_that_of_the_description(
    drawn: tuple[list[np.ndarray], list[int]],
) -> None:
    # Acceptance 8 %, labels 0 and 9 more frequent; within five standard deviations.
    count = len(drawn[1])
    assert abs(count / 4096 - 0.083) < 5 * np.sqrt(0.083 * 0.917 / 4096)
    ends = np.mean([value in (0, 9) for value in drawn[1]])
    assert abs(ends - 0.33) < 5 * np.sqrt(0.33 * 0.67 / count)


def test_digits_and_operators_are_uniform() -> None:
    trees, _ = sample_trees(np.random.default_rng(1), 4096)
    counts = np.bincount(trees.values, minlength=15)
    for group in (counts[:10], counts[10:14]):
        assert abs(group / group.mean() - 1).max() < 0.05
    assert counts[14] == counts[10:14].sum()


def test_block_repeats_by_seed_and_number(drawn: tuple[list[np.ndarray], list[int]]) -> None:
    one, other = draw_block(0, 0), draw_block(0, 1)
    assert np.array_equal(one[0][0], drawn[0][0]) and one[1].tolist() == drawn[1]
    assert not np.array_equal(one[0].values[:100], other[0].values[:100])


def test_no_tree_gives_an_empty_set() -> None:
    trees, values = sample_trees(np.random.default_rng(0), 1)
    assert len(trees) == len(values) == 0

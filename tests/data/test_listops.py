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

Drawn = list[tuple[np.ndarray, int]]


def tokens_of(text: str) -> np.ndarray:
    return np.array([TOKENS.index(word) for word in text.split()], np.uint8)


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    trees, values = draw_block(0)
    return [(trees[index], value) for index, value in enumerate(values.tolist())]


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
    assert evaluate(tokens_of(text)) == value_of(text.replace(" ", "\n ")) == value
    assert written(tokens_of(text)) == text
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
    for other in (text, "[MIN 1 22 ]", "[MEAN 1 2 ]", "[MIN 1 2]", "min 1 2", "[PAD]"):
        assert value_of(other) is None


def test_every_tree_is_within_the_rules_and_read_again_as_it_is_written(drawn: Drawn) -> None:
    for tokens, _ in drawn:
        assert 500 < len(tokens) < 2000 and tokens.max() < PAD
        opened, closed = (tokens >= 10) & (tokens < 14), tokens == 14
        assert (opened.cumsum() - closed.cumsum()).max() < 10
    for tokens, value in drawn[:60]:
        assert value_of(written(tokens)) == value


def test_distribution_is_that_of_the_description(drawn: Drawn) -> None:
    # Acceptance 8 %, labels 0 and 9 more frequent; within five standard deviations.
    count = len(drawn)
    assert abs(count / 4096 - 0.083) < 5 * np.sqrt(0.083 * 0.917 / 4096)
    ends = np.mean([value in (0, 9) for _, value in drawn])
    assert abs(ends - 0.33) < 5 * np.sqrt(0.33 * 0.67 / count)
    counts = np.bincount(sample_trees(np.random.default_rng(1), 4096)[0].values, minlength=15)
    for group in (counts[:10], counts[10:14]):
        assert abs(group / group.mean() - 1).max() < 0.05
    assert counts[14] == counts[10:14].sum()


def test_block_repeats_by_number(drawn: Drawn) -> None:
    one, other = draw_block(0), draw_block(1)
    assert np.array_equal(one[0][0], drawn[0][0])
    assert one[1].tolist() == [value for _, value in drawn]
    assert not np.array_equal(one[0].values[:100], other[0].values[:100])
    trees, values = sample_trees(np.random.default_rng(0), 1)
    assert len(trees) == len(values) == 0

import numpy as np

from data.token_set import Ragged, TokenSet

ROWS = [[1, 2, 3], [4], [5, 6]]
OTHERS = [[7], [8, 9], [1, 1, 1, 1]]


def make_set(*parts: list[list[int]], dtype: type[np.unsignedinteger] = np.uint8) -> TokenSet:
    return TokenSet(
        sequences=tuple(Ragged.of((np.array(row) for row in rows), dtype) for rows in parts),
        labels=np.array([0, 1, 0]),
        label_names=["a", "b"],
        vocab_size=11,
        seq_len=4,
        pad=10,
        description="rows",
    )


def test_batch_is_padded_to_its_longest_sequence() -> None:
    tokens, mask, labels = make_set(ROWS).batch([2, 1])
    assert tokens.tolist() == [[5, 6], [4, 10]] and tokens.dtype == np.int64
    assert mask.tolist() == [[True, True], [True, False]] and labels.tolist() == [0, 1]


def test_pairs_are_padded_to_one_length_and_taken_together() -> None:
    pairs = make_set(ROWS, OTHERS)
    tokens, mask, _ = pairs.batch([0, 2])
    assert pairs.towers == 2 and pairs.lengths.tolist() == [3, 2, 4]
    assert tokens[0].tolist() == [[1, 2, 3, 10], [7, 10, 10, 10]]
    assert tokens[1].tolist() == [[5, 6, 10, 10], [1, 1, 1, 1]]
    assert mask.sum(2).tolist() == [[3, 1], [2, 4]]
    taken = pairs.take(np.array([2, 0, 2]))
    assert [taken.sequences[0][i].tolist() for i in range(3)] == [[5, 6], [1, 2, 3], [5, 6]]
    assert taken.labels.tolist() == [0, 0, 0] and len(taken) == 3
    assert len(taken.take([])) == 0


def test_digest_follows_the_content_and_not_its_type() -> None:
    digest = make_set(ROWS).digest()
    assert make_set(ROWS, dtype=np.uint16).digest() == digest
    assert make_set([[1, 2], [3, 4], [5, 6]]).digest() != digest
    assert make_set(ROWS).take([1, 0, 2]).digest() != digest

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers

from data.datasets.listops import TOKENS
from data.errors import DataError
from data.sets import TextSet
from data.tokenizer import TextTokenizer, byte_tokenizer, load_tokenizer, tokenize, train_wordpiece
from tests.data.conftest import Snapshot

WORDS = "the film was great and the play was greater yet the acting seemed unacted".split()
TEXTS = [" ".join(WORDS[i : i + 6]) + "!" for i in range(8)] * 3


@pytest.fixture(scope="module")
def wordpiece() -> TextTokenizer:
    return train_wordpiece(TEXTS, vocab_size=60)


def vocabulary(tokenizer: TextTokenizer, folder: Path) -> dict[str, int]:
    tokenizer.save(folder / "tokenizer.json")
    return json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]


def longest_match(text: str, vocab: dict[str, int]) -> list[int]:
    """Greedy longest-match-first of Wu et al. 2016, word by word."""
    ids: list[int] = []
    for word in re.findall(r"\w+|[^\w\s]", text.lower()):
        pieces, rest = [], word
        while rest.strip("#"):
            starts = (rest[:end] for end in range(len(rest), 0, -1))
            piece = next((start for start in starts if start in vocab), None)
            if piece is None or piece == "##":
                pieces = [vocab["[UNK]"]]
                break
            pieces.append(vocab[piece])
            rest = "##" + rest.removeprefix(piece)
        ids += pieces
    return ids


def test_vocabulary_is_the_same_again_and_read_as_it_was_saved(
    wordpiece: TextTokenizer, tmp_path: Path
) -> None:
    vocab = vocabulary(wordpiece, tmp_path)
    assert vocab["[PAD]"] == wordpiece.pad == 0 and vocab["[UNK]"] == 1
    assert sorted(vocab.values()) == list(range(wordpiece.vocab_size)) and len(vocab) == 60
    train_wordpiece(TEXTS, vocab_size=60).save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    for one, other in zip(wordpiece.encode(TEXTS, 9), loaded.encode(TEXTS, 9), strict=True):
        assert np.array_equal(one, other)


def test_pieces_are_the_longest_that_match(wordpiece: TextTokenizer, tmp_path: Path) -> None:
    vocab = vocabulary(wordpiece, tmp_path)
    for text in ("The GREATEST film!", "unplayed, or acted?", "x y z", "thé"):
        tokens, mask = wordpiece.encode([text], 100)
        assert tokens[mask].tolist() == longest_match(text.replace("é", "e"), vocab)
    one, other = (wordpiece.encode([t], 9)[0] for t in ("the<br /><br/>film", "the film"))
    assert np.array_equal(one, other)
    for tokenizer in (wordpiece, byte_tokenizer()):
        assert tokenizer.pad not in tokenizer.encode(["a [PAD] b"], 99)[0]


@pytest.mark.parametrize(
    ("source", "text", "found"),
    [
        ("words", "the film great 😀", (3, 4, 3, 0)),
        ("words", "😀 the 😀 film", (3, 4, 3, 2)),
        ("bytes", "the 😀", (3, 8, 1, 0)),
        ("listops", "[MAX film 4 ]", (3, 4, 3, 1)),
    ],
)
def test_what_is_read_of_a_text_is_counted(
    wordpiece: TextTokenizer, source: str, text: str, found: tuple[int, ...]
) -> None:
    tokenizer = wordpiece if source == "words" else load_tokenizer(source)
    reading = tokenizer.read(text, 3)
    assert np.array_equal(reading.ids, tokenizer.rows([text], 3)[0])
    counts = len(reading.ids), reading.tokens, reading.words, reading.unknown
    assert counts == found


def test_batch_is_padded_and_cut_and_wrong_lengths_are_refused(wordpiece: TextTokenizer) -> None:
    tokens, mask = wordpiece.encode(["the film", "the film was great and the play"], 5)
    assert tokens.shape == mask.shape == (2, 5) and tokens.dtype == np.int64
    assert mask.sum(1).tolist() == [2, 5]
    assert (tokens[~mask] == wordpiece.pad).all() and (tokens[mask] > 0).all()
    with pytest.raises(ValueError, match="max_len must be at least 1, got 0"):
        wordpiece.encode(["the film"], 0)
    with pytest.raises(ValueError, match=r"every text must hold a token, got none in \[1\]"):
        wordpiece.encode(["film", "\x00"], 9)
    with pytest.raises(ValueError, match=r"vocab_size must be at least \d\d, got 9"):
        train_wordpiece(TEXTS, vocab_size=9)


def test_bytes_are_their_own_tokens(tmp_path: Path) -> None:
    text = "".join(map(chr, range(1, 256))) + " naïve 日本 \U0001f600\n"
    byte_tokenizer().save(tmp_path / "tokenizer.json")
    for tokenizer in (load_tokenizer("bytes"), load_tokenizer(tmp_path)):
        tokens, mask = tokenizer.encode([text, "a"], 4000)
        assert tokens[0].tolist() == list(text.encode())
        assert tokens[1, 0] == 97 and (tokens[1, 1:] == 256).all() and mask[1].sum() == 1
        assert (tokenizer.vocab_size, tokenizer.pad) == (257, 256)
        words = tokenizer.vocabulary()
        assert words.texts == [chr(byte) for byte in range(128)] + [""] * 129
        assert not words.continues.any()


def test_hub_tokenizer_is_read_from_the_cache(wordpiece: TextTokenizer, snapshot: Snapshot) -> None:
    wordpiece.save(snapshot("models--team--words") / "tokenizer.json")
    assert load_tokenizer("hf:team/words").vocab_size == 60
    with pytest.raises(DataError, match="tokenizer.json of hf:team/other cannot be had"):
        load_tokenizer("hf:team/other")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "^t.json is no file; tokenizers are tokenizer.json, hf:NAME, bytes"),
        ("{", "^t.json is not a readable tokenizer"),
        ('{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}', "padding"),
    ],
)
def test_broken_tokenizer_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content:
        (tmp_path / "t.json").write_text(content)
    with pytest.raises(DataError, match=message):
        load_tokenizer(tmp_path / "t.json")


def make_set(texts: list[str], labels: list[int] | None) -> TextSet:
    return TextSet(
        names=[str(i) for i in range(len(texts))],
        labels=None if labels is None else np.array(labels, np.int64),
        label_names=["neg", "pos"],
        description="two films",
        reader=lambda index: texts[index],
    )


def test_text_set_with_labels_and_tokens_becomes_a_token_set(wordpiece: TextTokenizer) -> None:
    texts = ["the film was great", "the play"]
    tokens = tokenize(make_set(texts, [1, 0]), wordpiece, max_len=3)
    batch, mask, labels = tokens.batch([1, 0])
    expected, expected_mask = wordpiece.encode(texts[::-1], 3)
    assert np.array_equal(batch, expected) and np.array_equal(mask, expected_mask)
    assert labels.tolist() == [0, 1] and tokens.seq_len == 3 and tokens.description == "two films"
    with pytest.raises(DataError, match="two films: labels and their names are needed"):
        tokenize(make_set(["a"], None), wordpiece, max_len=3)
    with pytest.raises(DataError, match="two films: every text must hold a token"):
        tokenize(make_set(["\x00"], [0]), wordpiece, max_len=3)


def test_pieces_are_found_in_the_text(wordpiece: TextTokenizer) -> None:
    text = "The gréater<br />play, unacted"
    pieces = wordpiece.pieces(text, 40)
    assert np.array_equal(pieces.ids, wordpiece.rows([text], 40)[0])
    found = [text[start:stop] for start, stop in pieces.spans]
    assert "".join(found) == "Thegréaterplay,unacted"
    assert len(wordpiece.pieces(text, 3).ids) == len(wordpiece.pieces(text, 3).spans) == 3
    assert wordpiece.pieces(" ", 3).spans.shape == (0, 2) and not len(wordpiece.ids([" "], 3)[0])


def test_vocabulary_says_how_tokens_are_written(wordpiece: TextTokenizer, tmp_path: Path) -> None:
    ids = vocabulary(wordpiece, tmp_path)
    words = wordpiece.vocabulary()
    assert words.texts[ids["the"]] == "the" and not words.continues[ids["the"]]
    assert words.texts[ids["##a"]] == "a" and words.continues[ids["##a"]]
    assert words.texts[ids["[PAD]"]] == words.texts[ids["[UNK]"]] == ""
    pairs = zip(words.texts, words.continues, strict=True)
    begins = {index: text for index, (text, more) in enumerate(pairs) if text and not more}
    rows = wordpiece.rows([*begins.values()], 2)
    assert [row.tolist() for row in rows] == [[index] for index in begins]


def test_expressions_have_the_ids_of_the_task() -> None:
    tokenizer = load_tokenizer("listops")
    [row, other] = tokenizer.rows(["[MAX 4 [MIN 2 3 ] ]", "[MAX film"], 20)
    assert row.tolist() == [11, 4, 10, 2, 3, 14, 14] and other.tolist() == [11, 15]
    assert (tokenizer.pad, tokenizer.vocab_size) == (15, 16)
    assert tokenizer.vocabulary().texts == [*TOKENS, ""]


def test_what_the_library_cannot_read_is_a_value_error(capfd: pytest.CaptureFixture[str]) -> None:
    panicking = Tokenizer(models.WordLevel({"[PAD]": 0}, unk_token="[PAD]"))
    panicking.normalizer = normalizers.Replace(Regex("(a+)+b"), "")
    failing = Tokenizer(models.WordLevel({"[PAD]": 0}, unk_token="[UNK]"))
    for library, reason in ((panicking, "retry-limit"), (failing, "Missing")):
        tokenizer = TextTokenizer(library)
        with pytest.raises(ValueError, match=f"cannot read this: .*{reason}"):
            tokenizer.ids(["a" * 40], 8)
        with pytest.raises(ValueError, match=f"cannot read this: .*{reason}"):
            tokenizer.pieces("a" * 40, 8)
    assert "panicked" in capfd.readouterr().err

"""From texts to token ids: WordPiece vocabularies of our own or of the hub, bytes, and ListOps.

All of them are files `tokenizer.json` of the `tokenizers` library. No tokenizer adds marks such as
[CLS]: the models pool over real tokens.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from data.datasets.listops import TOKENS as LISTOPS_TOKENS
from data.errors import DataError
from data.formats.hub import hub_file
from data.sets import TextSet
from data.token_set import Ragged, TokenSet

PAD, UNKNOWN = "[PAD]", "[UNK]"
_PAD_NAMES = (PAD, "<pad>", "<|padding|>", "<|endoftext|>", "<eos>")
_HTML_BREAK = r"<br\s*/?>"
_LONGEST_WORD = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The tokens of one text, and where they stand in it.

    Attributes:
        ids: (N,) int64.
        spans: (N, 2) int64, the first character of each and the one after its last.
    """

    ids: np.ndarray
    spans: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a model reads of one text.

    Attributes:
        ids: (N,) int64.
        tokens: of the whole text, at least N.
        words: of which the N tokens are made; the whole text where words are not told apart.
        unknown: of these words, those that are not in the vocabulary.
    """

    ids: np.ndarray
    tokens: int
    words: int
    unknown: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """How tokens are written.

    Attributes:
        texts: what each id stands for, empty for padding and where no text gives this token.
        continues: (V,) bool, tokens that can only continue a word.
    """

    texts: list[str]
    continues: np.ndarray


class TextTokenizer:
    """Token ids of texts; the same file gives the same ids everywhere.

    Args:
        tokenizer: with a token for padding.

    Raises:
        DataError: it has no token for padding.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # What a file of the hub says about lengths is not ours; `encode` cuts and pads.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # A text may spell out "[PAD]"; it is text all the same.
        tokenizer.encode_special_tokens = True
        found = [tokenizer.token_to_id(name) for name in _PAD_NAMES]
        known = [token for token in found if token is not None]
        if not known:
            raise DataError(f"the tokenizer has none of the padding tokens {', '.join(_PAD_NAMES)}")
        self.pad: int = known[0]
        self._unknown = tokenizer.token_to_id(
            getattr(tokenizer.model, "unk_token", None) or "<unk>"
        )

    @property
    def vocab_size(self) -> int:
        """Ids lie in [0, vocab_size)."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def save(self, path: Path) -> None:
        """Write `tokenizer.json`."""
        path.write_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of `tokenizer.json`."""
        return self._tokenizer.to_str(pretty=True).encode()

    def rows(self, texts: Sequence[str], max_len: int) -> list[np.ndarray]:
        """Token ids of each text, cut after its first `max_len` tokens.

        Raises:
            ValueError: a text without a token, named by its place, or `max_len` below 1.
        """
        if max_len < 1:
            raise ValueError(f"max_len must be at least 1, got {max_len}")
        rows = self.ids(texts, max_len)
        empty = [place for place, row in enumerate(rows) if not len(row)]
        if empty:
            raise ValueError(f"every text must hold a token, got none in {empty[:10]}")
        return rows

    def ids(self, texts: Sequence[str], max_len: int) -> list[np.ndarray]:
        """As `rows`, but a text without a token gives an empty row.

        Raises:
            ValueError: the library cannot read a text.
        """
        encodings = _read(self._tokenizer.encode_batch_fast, list(texts))
        return [np.array(encoding.ids[:max_len], np.int64) for encoding in encodings]

    def read(self, text: str, max_len: int) -> Reading:
        """The first `max_len` tokens of a text, and what they leave out; raises as `ids`."""
        # Of one text alone, the library would not let other threads run meanwhile.
        (encoding,) = _read(self._tokenizer.encode_batch, [text])
        ids, words = encoding.ids, encoding.word_ids[:max_len]
        unknown = {word for word, token in zip(words, ids, strict=False) if token == self._unknown}
        read = np.array(ids[:max_len], np.int64)
        return Reading(ids=read, tokens=len(ids), words=len(set(words)), unknown=len(unknown))

    def pieces(self, text: str, max_len: int) -> Pieces:
        """The first `max_len` tokens of a text, with their places; raises as `ids`."""
        (encoding,) = _read(self._tokenizer.encode_batch, [text])  # see `read`
        return Pieces(
            ids=np.array(encoding.ids[:max_len], np.int64),
            spans=np.array(encoding.offsets[:max_len], np.int64).reshape(-1, 2),
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, words with blanks between them."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def words(self, text: str) -> list[Pieces]:
        """The tokens of a whole text, word by word; raises as `ids`."""
        encoding = _read(self._tokenizer.encode, text)
        found: dict[object, list[int]] = {}
        for token, word in enumerate(encoding.word_ids):
            found.setdefault(word, []).append(token)
        ids, spans = np.array(encoding.ids, np.int64), np.array(encoding.offsets, np.int64)
        return [Pieces(ids=ids[own], spans=spans[own]) for own in found.values()]

    def marks(self) -> tuple[list[str], list[str]]:
        """What the file itself puts before every text and behind it, such as [CLS] and [SEP]."""
        encoding = self._tokenizer.encode("a")
        text = [place for place, mark in enumerate(encoding.special_tokens_mask) if not mark]
        return encoding.tokens[: min(text, default=0)], encoding.tokens[max(text, default=-2) + 1 :]

    def id_of(self, token: str) -> int:
        """The id of a token.

        Raises:
            DataError: there is no such token.
        """
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise DataError(f"the tokenizer has no token {token[:60]!r}")
        return found

    @property
    def last_id(self) -> int:
        """The largest id, which may be more than their number tells."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    def vocabulary(self) -> Vocabulary:
        """How every token is written; what continues a word is written without its mark."""
        prefix = getattr(self._tokenizer.model, "continuing_subword_prefix", None)
        known = self._tokenizer.get_vocab(with_added_tokens=True)
        texts = [""] * (max(known.values()) + 1)
        continues = np.zeros(len(texts), np.bool_)
        for token, index in known.items():
            continues[index] = bool(prefix) and token.startswith(prefix) and token != prefix
            texts[index] = token[len(prefix or "") :] if continues[index] else self.decode([index])
        alone = self.ids(texts, 2)
        for index, row in enumerate(alone):
            if index == self.pad or not continues[index] and row.tolist() != [index]:
                texts[index] = ""
        return Vocabulary(texts=texts, continues=continues)

    def encode(self, texts: Sequence[str], max_len: int) -> tuple[np.ndarray, np.ndarray]:
        """Encode a batch, padded to its longest text.

        Args:
            texts: B texts.
            max_len: tokens after the first `max_len` of a text are cut off.

        Returns:
            tokens (B, N) int64 and mask (B, N) bool, True for real tokens.

        Raises:
            ValueError: a text without a token, or `max_len` below 1.
        """
        ragged = Ragged.of(self.rows(texts, max_len), np.uint32)
        return ragged.padded(int(ragged.lengths.max(initial=1)), self.pad)


def _read(encode: Callable[..., Any], given: str | list[str]) -> Any:
    try:
        return encode(given, add_special_tokens=False)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library is no Exception
        raise ValueError(f"the tokenizer cannot read this: {error}") from error


def train_wordpiece(texts: Iterable[str], *, vocab_size: int) -> TextTokenizer:
    """Train a lower-casing WordPiece vocabulary; the same texts give the same file.

    Text is cleaned and split as by BERT; line breaks of HTML count as blanks.

    Args:
        texts: what to learn from.
        vocab_size: entries, padding (id 0) and unknown (id 1) included; fewer where the texts do
            not give as many.

    Raises:
        ValueError: `vocab_size` is less than the characters of the texts need.
    """
    texts = list(texts)
    tokenizer = _wordpiece({PAD: 0, UNKNOWN: 1})
    # The trainer numbers what continues a word in the order of a hash table, another one each time,
    # and breaks ties by these numbers. Given first, as special entries, they are fixed.
    entries = [PAD, UNKNOWN, *_continuations(tokenizer, texts)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=entries, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = tokenizer.get_vocab()
    if len(vocabulary) > vocab_size:
        raise ValueError(f"vocab_size must be at least {len(vocabulary)}, got {vocab_size}")
    # Built again without special entries, which would also be found inside of texts.
    return TextTokenizer(_wordpiece(vocabulary))


def _wordpiece(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(
        models.WordPiece(
            vocab=vocabulary, unk_token=UNKNOWN, max_input_chars_per_word=_LONGEST_WORD
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(_HTML_BREAK), " "), normalizers.BertNormalizer(lowercase=True)]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _continuations(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    """The single characters that continue a word, as the vocabulary writes them: `##a`, ..."""
    words = {word for text in texts for word in tokenizer.normalizer.normalize_str(text).split()}
    parts = {part for word in words for part, _ in tokenizer.pre_tokenizer.pre_tokenize_str(word)}
    return sorted({f"##{character}" for part in parts for character in part[1:]})


def byte_tokenizer() -> TextTokenizer:
    """Bytes of UTF-8 as tokens: ids 0 to 255, and 256 for padding, so that no text contains it."""
    # The library writes each byte as a printable character; those of its alphabet, by byte.
    characters = [chr(byte) if _printable(byte) else None for byte in range(256)]
    spare = iter(range(256, 512))
    alphabet = [character or chr(next(spare)) for character in characters]
    vocabulary = {character: byte for byte, character in enumerate(alphabet)} | {PAD: 256}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return TextTokenizer(tokenizer)


def listops_tokenizer() -> TextTokenizer:
    """ListOps written with blanks: ids of `data.datasets.listops`, 15 for padding and unknown."""
    vocabulary = {token: index for index, token in enumerate([*LISTOPS_TOKENS, PAD])}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return TextTokenizer(tokenizer)


def _printable(byte: int) -> bool:
    """Whether a byte stands for itself in the alphabet of GPT-2 (Radford et al. 2019)."""
    return 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255


_OURS = {"bytes": byte_tokenizer, "listops": listops_tokenizer}


def load_tokenizer(source: str | Path) -> TextTokenizer:
    """Load a tokenizer.

    Args:
        source: a file `tokenizer.json`, a folder that holds one, `hf:NAME` for one of the hub,
            `bytes`, or `listops`.

    Raises:
        DataError: it is missing, broken, or has no token for padding.
    """
    text = str(source)
    if text in _OURS:
        return _OURS[text]()
    path = hub_file(text.removeprefix("hf:"), "tokenizer.json") if text[:3] == "hf:" else Path(text)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        known = "tokenizer.json, hf:NAME, bytes or listops"
        raise DataError(f"{path.name} is no file; tokenizers are {known}")
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises its errors as bare exceptions
        raise DataError(f"{path.name} is not a readable tokenizer: {error}") from error
    return TextTokenizer(tokenizer)


def tokenize(texts: TextSet, tokenizer: TextTokenizer, *, max_len: int) -> TokenSet:
    """Encode a labeled set of texts, each cut after its first `max_len` tokens.

    Raises:
        DataError: the set has no labels or no names of classes, or a text has no token.
    """
    if texts.labels is None or texts.label_names is None:
        raise DataError(f"{texts.description}: labels and their names are needed")
    try:
        rows = tokenizer.rows(list(texts), max_len)
    except ValueError as error:
        raise DataError(f"{texts.description}: {error}") from error
    return TokenSet(
        sequences=(Ragged.of(rows, np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32),),
        labels=texts.labels,
        label_names=texts.label_names,
        vocab_size=tokenizer.vocab_size,
        seq_len=max_len,
        pad=tokenizer.pad,
        description=texts.description,
    )

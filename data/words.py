"""Words as tokens of a language model, and texts as one stream of tokens."""

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from data.errors import DataError
from data.formats.documents import Documents
from data.tokenizer import TextTokenizer

UNKNOWN, END = "<unk>", "<eos>"
_HTML_BREAK = r"<br\s*/?>"
_MARKS = rf"{UNKNOWN}|{END}|\w+(?:'\w+)*|[^\w\s]"
_MOST_WORDS = 1 << 30
_LINES = 10_000  # tokenized at a time


def train_words(lines: Iterable[str], *, vocab_size: int | None, raw: bool) -> TextTokenizer:
    """Make a vocabulary of words, the commonest first; the same lines give the same file.

    `<unk>` (id 0) stands for any other word, `<eos>` (id 1) for the end of a line.

    Args:
        lines: what to learn from.
        vocab_size: entries, both marks included; fewer where the lines do not give as many. None
            keeps all words.
        raw: the text is as it was written: its case is lowered, and marks are words of their own.
            Else words are what blanks part, as in WikiText.

    Raises:
        ValueError: there is no word.
    """
    tokenizer = _word_level({UNKNOWN: 0, END: 1}, raw=raw)
    # The marks are counted among the words, too.
    options = {"vocab_size": (vocab_size or _MOST_WORDS) + 2, "special_tokens": [UNKNOWN, END]}
    trainer = trainers.WordLevelTrainer(**options, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    counted = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    words = [UNKNOWN, END, *(word for word, _ in counted if word not in (UNKNOWN, END))]
    if len(words) < 3:
        raise ValueError("the vocabulary must hold a word, got none")
    # Built again without special entries, which would also be found inside of words.
    vocabulary = {word: index for index, word in enumerate(words[:vocab_size])}
    return TextTokenizer(_word_level(vocabulary, raw=raw))


def _word_level(vocabulary: dict[str, int], *, raw: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=UNKNOWN))
    ends = normalizers.Replace("\n", f" {END} ")
    if not raw:
        tokenizer.normalizer, tokenizer.pre_tokenizer = ends, pre_tokenizers.WhitespaceSplit()
        return tokenizer
    breaks = normalizers.Replace(Regex(_HTML_BREAK), " ")
    tokenizer.normalizer = normalizers.Sequence([breaks, normalizers.Lowercase(), ends])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_MARKS), "removed", invert=True)
    return tokenizer


def lines_of(documents: Documents) -> Iterator[str]:
    """The lines of documents, each with its end.

    Raises:
        DataError: a document is not in UTF-8.
    """
    for place, text in enumerate(documents.texts):
        try:
            lines = text.decode().removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{documents.name}: text {place} is not UTF-8: {error}") from error
        yield from (f"{line}\n" for line in lines)


def word_stream(documents: Documents, tokenizer: TextTokenizer) -> np.ndarray:
    """All tokens of documents one behind another, (T,) uint16 or uint32; raises as `lines_of`."""
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    lines, parts = lines_of(documents), [np.empty(0, dtype)]
    while some := list(islice(lines, _LINES)):
        parts += [row.astype(dtype) for row in tokenizer.ids(some, _MOST_WORDS)]
    return np.concatenate(parts)


def byte_stream(documents: Documents) -> np.ndarray:
    """All bytes of documents, line breaks between them, (T,) uint8."""
    return np.frombuffer(documents.joined(), np.uint8)

"""Words and what may stand in their place: slips of the keyboard, or what a given table has."""

import hashlib
import json
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import nlargest
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from robustness.attacks.base import Batch, Budget
from robustness.attacks.text_search import Edits
from robustness.attacks.typos import every_slip
from robustness.attacks.worst_pieces import table_of
from robustness.kinds import NotPossible

if TYPE_CHECKING:
    from data.tokenizer import TextTokenizer
    from models.analysis.words import Word, WorstWords
    from robustness.target import Target
    from robustness.text_target import TextTarget

MOST = 50_000
"""Alternatives of a table, all words together."""
_MOST_EACH = 1_000  # of one word; the slips of a word of 20 letters are as many
_LONGEST = 50  # letters of a word, or of an alternative
_WRITTEN = 1 << 20  # letters of all that may stand in the place of a word
_KEPT = 1 << 24  # pieces that are kept of words
WORD = re.compile(r"[^\W\d_]+")
_ALTERNATIVE = re.compile(r"[^\W\d_]+(?:[ '’-][^\W\d_]+)*")
_MISTYPED = 3  # letters of a word at least
_MISTYPED_MOST = 100  # at most, if all its slips are to be known
_ALL = 1 << 20  # pieces of a word, at most
_HTML_BREAK = "br"  # what tokenizers may read as a blank, between < and >

Ways = Callable[[str], tuple[str, ...] | None]
"""What may stand in the place of a word, without the word itself; None where that is not known."""


def _listed(others: object) -> object:
    """Let "movie, picture" stand for a list of both, which takes less of a request."""
    return [other.strip() for other in others.split(",")] if isinstance(others, str) else others


def _checked(table: dict[str, list[str]]) -> dict[str, list[str]]:
    """Refuse what is no table of words, or too large a one."""
    for word, others in table.items():
        for text, form in ((word, WORD), *((other, _ALTERNATIVE) for other in others)):
            if len(text) > _LONGEST or not form.fullmatch(text):
                raise ValueError(
                    f"table must hold words of at most {_LONGEST} letters, alternatives also with "
                    f"a blank, hyphen or apostrophe between them, got {text[:60]!r}"
                )
        if len(others) > _MOST_EACH:
            raise ValueError(
                f"table must hold at most {_MOST_EACH:,} alternatives of a word, "
                f"got {len(others):,} of {word!r}"
            )
    if len({word.lower() for word in table}) < len(table):
        raise ValueError("table must not name a word twice, in whatever case")
    if (count := sum(map(len, table.values()))) > MOST:
        raise ValueError(f"table must hold at most {MOST:,} alternatives, got {count:,}")
    return table


Table = Annotated[
    dict[str, Annotated[list[str], BeforeValidator(_listed)]],
    Field(description="words with their alternatives, which get the capitals of the word"),
    AfterValidator(_checked),
]
GivenTable = Annotated[Table, Field(min_length=1)]


def digest(table: Mapping[str, Sequence[str]]) -> str:
    """Of what a table says, whatever the order."""
    content = sorted((word.lower(), sorted(set(others))) for word, others in table.items())
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


class Rewording(Edits, frozen=True):
    """What replaces words by those of its `table`; without one it mistypes them."""

    @property
    def changes(self) -> str:
        """See `Attack.changes`."""
        table = getattr(self, "table", None)
        return f"words of {digest(table)}" if table else "slips"

    @property
    def ways(self) -> Ways:
        """What may stand in the place of a word."""
        table = getattr(self, "table", None)
        return alternatives(table) if table else slips

    def allowed(
        self, clean: Batch, made: Batch, budget: Budget, target: "Target", seeds: Sequence[int]
    ) -> np.ndarray:
        """At most so many words are replaced, each by what may stand there."""
        pairs, ways = zip(clean.texts, made.texts, strict=True), self.ways
        counts = [replaced_words(before, after, ways) for before, after in pairs]
        return np.array([count is not None and count <= budget.value for count in counts], bool)


@lru_cache(256)
def slips(word: str) -> tuple[str, ...] | None:
    """Every slip of a word that `typos` may draw; not known beyond 100 letters or a to z."""
    if len(word) < _MISTYPED:
        return ()
    known = word.isascii() and len(word) <= _MISTYPED_MOST
    return tuple(every_slip(word, string.ascii_lowercase)) if known else None


def alternatives(table: Mapping[str, Sequence[str]]) -> Callable[[str], tuple[str, ...]]:
    """What a table has for a word, in the capitals of the word."""
    known = {word.lower(): others for word, others in table.items()}

    @lru_cache(1024)
    def ways(word: str) -> tuple[str, ...]:
        """Those of one word."""
        found = (_in_case(word, other) for other in known.get(word.lower(), ()))
        return tuple(other for other in dict.fromkeys(found) if other != word)

    return ways


def _in_case(word: str, other: str) -> str:
    if len(word) > 1 and word.isupper():
        return other.upper()
    return other[0].upper() + other[1:] if word[0].isupper() else other


def replaced_words(before: str, after: str, ways: Ways) -> int | None:
    """How many words of a text are replaced at least to give another one; None where they cannot.

    Words are the runs of letters of the text before.
    """
    ends, done = {0: 0}, 0
    for word in WORD.finditer(before):
        if others := ways(word[0]):
            ends = _passed(ends, after, [(before[done : word.start()], 0)])
            ends = _passed(ends, after, [(word[0], 0), *((other, 1) for other in others)])
            done = word.end()
    return _passed(ends, after, [(before[done:], 0)]).get(len(after))


def _passed(ends: Mapping[int, int], text: str, forms: Sequence[tuple[str, int]]) -> dict[int, int]:
    """Where in a text one of some forms ends, and the least sum of costs so far, by its end."""
    found: dict[int, int] = {}
    for start, spent in ends.items():
        for form, cost in forms:
            if text.startswith(form, start):
                end = start + len(form)
                found[end] = min(found.get(end, spent + cost), spent + cost)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A word as a tokenizer tells words apart, at its place in a text.

    Attributes:
        start: its first character.
        stop: the one after its last.
        word: its pieces, and those of what may stand there.
    """

    start: int
    stop: int
    word: "Word"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is known of a written word.

    Attributes:
        word: its pieces, and those of what may stand there.
        parts: where parts of it begin that may be replaced.
        saves: how many pieces less the shortest of its forms has.
        unclear: whether something in it is not known, or could be read as nothing.
        breaks: whether one of its forms could become a mark of HTML.
    """

    word: "Word"
    parts: list[int]
    saves: int
    unclear: bool
    breaks: bool


class Reader:
    """The words of texts with all that may stand in their place; what was read of one is kept.

    Args:
        tokenizer: of word pieces.
        ways: what may stand in the place of a run of letters.
        max_len: pieces that a model reads.
        count: words that are replaced at most.
    """

    def __init__(self, tokenizer: "TextTokenizer", ways: Ways, max_len: int, count: int) -> None:
        self._tokenizer, self._ways = tokenizer, ways
        self._max_len, self._count = max_len, count
        self._known: dict[str, _Known] = {}
        self._kept = 0

    def places(self, text: str) -> list[Place] | None:
        """The words of a text, as far as they can be read, whichever words are replaced.

        None where they might be read otherwise together than alone.
        """
        found, inside, saved, length, end = list[Place](), list[int](), list[int](), 0, len(text)
        for one in self._tokenizer.words(text):
            start, stop = int(one.spans[0, 0]), int(one.spans[-1, 1])
            if length - sum(nlargest(self._count, saved)) >= self._max_len:
                end = start
                break
            written = text[start:stop]
            known = self._known.get(written)
            if known is None:
                known = self._keep(written, self._read(written))
            marked = known.breaks and text[max(start - 1, 0) : start] == "<"
            joined = not np.array_equal(known.word.pieces, one.ids)
            if known.unclear or marked or joined or len(known.parts) > 1 < self._count:
                return None
            inside += [start + part for part in known.parts]
            saved.append(known.saves)
            length += len(one.ids)
            found.append(Place(start=start, stop=stop, word=known.word))
        # A run of letters that the tokenizer reads as several words, or as none, is not known.
        runs = [run.start() for run in WORD.finditer(text, 0, end) if self._ways(run[0]) != ()]
        return found if inside == runs else None

    def written(self, word: str, pieces: np.ndarray) -> str:
        """What may stand in the place of a word and gives these pieces."""
        forms = self._forms(word)
        rows = self._tokenizer.ids(forms, _ALL)
        return next(f for f, row in zip(forms, rows, strict=True) if np.array_equal(row, pieces))

    def _keep(self, written: str, known: _Known) -> _Known:
        """Keep what was read, in place of all else where that has become too much."""
        size = sum(rows.size for rows in known.word.others)
        if self._kept + size > _KEPT:
            self._known, self._kept = {}, 0
        self._known[written] = known
        self._kept += size
        return known

    def _forms(self, written: str) -> list[str]:
        """What may stand in the place of a word."""
        return [
            written[: run.start()] + one + written[run.end() :]
            for run in WORD.finditer(written)
            for one in self._ways(run[0]) or ()
        ]

    def _read(self, written: str) -> _Known:
        from models.analysis.words import Word

        ways = {run.start(): self._ways(run[0]) for run in WORD.finditer(written)}
        alike = sum(len(others or ()) for others in ways.values())
        unclear = None in ways.values() or alike * len(written) > _WRITTEN
        forms = [] if unclear else self._forms(written)
        own, *rows = self._tokenizer.ids([written, *forms], _ALL)
        return _Known(
            word=Word(pieces=own, others=_by_length([row for row in rows if len(row)])),
            parts=[start for start, others in ways.items() if others != ()],
            saves=len(own) - min(len(row) for row in (own, *rows)),
            unclear=unclear or not all(map(len, rows)),
            breaks=any(form.lower() == _HTML_BREAK for form in forms),
        )


class Solver:
    """Worst cases of replaced words in texts of one model.

    Args:
        target: the model.
        ways: what may stand in the place of a word.
        count: words that are replaced at most.
        before: called before each piece of long work.

    Raises:
        NotPossible: the model's worst case is not known.
    """

    def __init__(
        self, target: "TextTarget", ways: Ways, count: int, before: Callable[[], object] | None
    ) -> None:
        require_word_pieces(target)
        table, self._count = table_of(target), count
        self._given, self._bias = table.everywhere(target.max_len, before), table.bias
        self._reader = Reader(target.require_tokenizer(), ways, target.max_len, count)
        self.rounding = table.rounding(target.max_len)

    def worst(self, text: str, label: int) -> "tuple[list[Place], WorstWords] | None":
        """The words of a text and their worst case; None where it is not known."""
        from models.analysis.words import worst_words

        places = self._reader.places(text)
        if not places:
            return None
        words = [place.word for place in places]
        [found] = worst_words(self._given, self._bias, words, label, [self._count])
        return places, found

    def written(self, text: str, label: int) -> list[tuple[str, int]]:
        """The worst text and its number of replaced words, if it is known."""
        if (known := self.worst(text, label)) is None:
            return []
        places, found = known
        for index, pieces in reversed(list(zip(found.words, found.pieces, strict=True))):
            start, stop = places[index].start, places[index].stop
            text = text[:start] + self._reader.written(text[start:stop], pieces) + text[stop:]
        return [(text, len(found.words))]


def require_word_pieces(target: "TextTarget") -> None:
    """Refuse a tokenizer that knows no words.

    Raises:
        NotPossible: with the reason.
    """
    if not target.require_tokenizer().vocabulary().continues.any():
        raise NotPossible(f"the words of {target.name!r} are not known: it reads no word pieces")


def _by_length(rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Different rows in matrices, one for each length."""
    lengths = sorted({len(row) for row in rows})
    return [np.unique([row for row in rows if len(row) == n], axis=0) for n in lengths]

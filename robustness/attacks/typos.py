"""Typos: a slip of the fingers in the words that matter most to the model."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from robustness.attacks.base import Info
from robustness.attacks.text_search import EditAttack, TextSearch

if TYPE_CHECKING:
    from robustness.text_target import TextTarget

WORD = re.compile(r"[^\W\d_]{3,}")
"""What may be mistyped: letters of any script."""
_DIGIT = re.compile(r"[0-9]")
_TRIES = 4  # of each kind of slip


class Typos(EditAttack, frozen=True):
    """Mistyped words, one after the other; the model is asked, its gradients are not needed.

    Words of three letters or more are ordered by how much the margin falls when each alone is left
    out; this takes at most half of the queries, beyond which words are drawn. Then, in this order,
    every word is mistyped in up to sixteen drawn ways (two neighbouring letters swapped, a letter
    left out, inserted or replaced, never the first one) and the worst is kept if it is worse. A
    word is mistyped at most once. Words that the model does not read are left alone. All draws of
    a text come from its own seed. Where the true class is recomputed, as for ListOps, it is single
    digits that are mistyped.

    Source: Gao et al. 2018 (DeepWordBug), sections III-B and III-C; the leave-one-out score on the
    margin, several slips per word and the kept first letter are our own.
    """

    info: ClassVar[Info] = Info(
        title="Typos",
        paper="Gao et al. 2018 (DeepWordBug)",
        references=("arXiv:1801.04354",),
        what="slips of the keyboard in the words that matter most",
        input="text",
        access="scores",
        budget="edits",
        counts="slips",
    )
    name: Literal["typos"] = "typos"

    def improver(self, target: "TextTarget") -> Callable[[TextSearch, int], None]:
        """See `EditAttack.improver`."""
        letters_alone = target.relabel is None

        def improve(search: TextSearch, seed: int) -> None:
            """Mistype words, or digits where the true class is recomputed."""
            draw = np.random.default_rng(int(seed))
            parts, places = split(search.text, target, WORD if letters_alone else _DIGIT)
            letters = sorted({letter for place in places for letter in parts[place].lower()})

            def ways(word: str) -> list[str]:
                """Some slips of a word."""
                return _slips(word, letters, draw, fixed=letters_alone)

            replace_words(search, parts, places, ways, draw, self.queries // 2)

        return improve

    def units(self, text: str, target: "TextTarget") -> Sequence[object]:
        """The words."""
        return text.split()


def replace_words(
    search: TextSearch,
    parts: list[str],
    places: list[int],
    ways: Callable[[str], Sequence[str]],
    rng: np.random.Generator,
    limit: int,
) -> None:
    """Replace words of a text, that which matters most first, each by the worst of its ways.

    Args:
        search: of the text, which is run to its end.
        parts: of the text.
        places: which of them are words.
        ways: what may stand in the place of a word.
        rng: draws words where queries are short.
        limit: queries for the order of the words at most.
    """
    for place in _by_importance(search, parts, places, rng, min(limit, search.left)):
        if not search.open:
            return
        others = ways(parts[place])
        chosen = search.advance(["".join(_with(parts, place, one)) for one in others])
        if chosen is not None:
            parts = _with(parts, place, others[chosen])


def split(text: str, target: "TextTarget", word: re.Pattern[str]) -> tuple[list[str], list[int]]:
    """A text in parts, and which of them are words that the model reads."""
    end = target.read_until(text)
    parts, places, done = [], [], 0
    for found in word.finditer(text, 0, end):
        parts += [text[done : found.start()], found[0]]
        places.append(len(parts) - 1)
        done = found.end()
    return [*parts, text[done:]], places


def _by_importance(
    search: TextSearch,
    parts: list[str],
    places: list[int],
    rng: np.random.Generator,
    limit: int,
) -> list[int]:
    """Places of words, that first without which the margin is smallest."""
    if len(places) > limit:
        places = sorted(rng.choice(places, limit, replace=False).tolist())
    margins = search.margins(["".join(_with(parts, place, "")) for place in places])
    return [places[index] for index in np.argsort(margins, kind="stable")]


def _slips(word: str, letters: list[str], rng: np.random.Generator, *, fixed: bool) -> list[str]:
    """Different mistyped forms of a word, the first letter kept if `fixed`."""
    first = int(fixed)
    found: list[str] = []
    for _ in range(_TRIES):
        places = rng.integers(first, len(word), 4).tolist()
        inserted, replacing = (
            letters[index] for index in rng.integers(0, len(letters), 2).tolist()
        )
        swap, drop, insert, replace = places
        swap = min(swap, max(len(word) - 2, 0))
        found += [
            word[:swap] + word[swap : swap + 2][::-1] + word[swap + 2 :],
            word[:drop] + word[drop + 1 :],
            word[:insert] + inserted + word[insert:],
            word[:replace] + replacing + word[replace + 1 :],
        ]
    return [slip for slip in dict.fromkeys(found) if slip != word]


def every_slip(word: str, letters: str) -> list[str]:
    """Every slip that may be drawn in a word of three letters or more, the first one kept."""
    found = list[str]()
    for i in range(1, len(word)):
        start, rest = word[:i], word[i + 1 :]
        found += [start + rest, *(start + letter + rest for letter in letters)]
        found += [start + letter + word[i:] for letter in letters]
        if rest:
            found.append(start + rest[0] + word[i] + rest[1:])
    return [slip for slip in dict.fromkeys(found) if slip != word]


def _with(parts: list[str], place: int, word: str) -> list[str]:
    return [*parts[:place], word, *parts[place + 1 :]]

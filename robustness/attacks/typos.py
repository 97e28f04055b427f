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
        return lambda search, seed: _attack(
            search, np.random.default_rng(int(seed)), self.queries // 2
        )

    def units(self, text: str, target: "TextTarget") -> Sequence[object]:
        """The words."""
        return text.split()


def _attack(search: TextSearch, rng: np.random.Generator, limit: int) -> None:
    """Run one search to its end; words are ordered by at most `limit` queries."""
    parts, places = _split(search.text, search.target)
    letters = sorted({letter for place in places for letter in parts[place].lower()})
    for place in _by_importance(search, parts, places, rng, min(limit, search.left)):
        if not search.open:
            return
        slips = _slips(parts[place], letters, rng, fixed=search.target.relabel is None)
        chosen = search.advance(["".join(_with(parts, place, slip)) for slip in slips])
        if chosen is not None:
            parts = _with(parts, place, slips[chosen])


def _split(text: str, target: "TextTarget") -> tuple[list[str], list[int]]:
    """A text in parts, and which parts are words that the model reads and that may be mistyped."""
    end = target.read_until(text)
    parts, places, done = [], [], 0
    for word in (WORD if target.relabel is None else _DIGIT).finditer(text, 0, end):
        parts += [text[done : word.start()], word[0]]
        places.append(len(parts) - 1)
        done = word.end()
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

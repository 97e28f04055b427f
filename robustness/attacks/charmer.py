"""Charmer: single characters replaced, inserted or deleted where the model listens most."""

from collections.abc import Callable, Sequence
from string import ascii_lowercase
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from robustness.attacks.base import Batch, Budget, Info
from robustness.attacks.text_search import EditAttack, TextSearch
from robustness.parsing import Count

if TYPE_CHECKING:
    from robustness.target import Target
    from robustness.text_target import TextTarget

_SHARE = 3  # an edit takes one of so many parts of the queries that are left


class Charmer(EditAttack, frozen=True):
    """Edits of single characters anywhere in the text; the model is asked, and no other one.

    A text of n characters has 2 n + 1 places: its characters, and the gaps around them. For every
    edit all places are probed with a blank (a blank with nothing), and at the `positions` with the
    smallest margins every character of the alphabet is tried, and at characters nothing, too; the
    worst text is kept if it is worse. What is counted is the Levenshtein distance. The alphabet is
    a to z and what the text has, in lower case; beyond what the model reads nothing is changed.

    An edit takes at most a third of the queries that are left, half of them for the probes: where
    they do not suffice, places are drawn, and fewer `positions` are tried. With enough of them
    nothing is drawn.

    Source: Rocamora et al. 2024 (Charmer), algorithm 1, positions as in section 4; the margin as
    the loss. The shares of queries are our own, and the paper's alphabet is that of its data.
    """

    info: ClassVar[Info] = Info(
        title="Charmer",
        paper="Rocamora et al. 2024 (Charmer)",
        references=("arXiv:2405.04346",),
        what="single characters replaced, inserted or deleted where it hurts most",
        input="text",
        access="scores",
        budget="edits",
    )
    name: Literal["charmer"] = "charmer"
    positions: Count = Field(default=20, description="places where every character is tried")

    def improver(self, target: "TextTarget") -> Callable[[TextSearch, int], None]:
        """See `EditAttack.improver`."""
        return lambda search, seed: _attack(
            search, np.random.default_rng(int(seed)), self.positions
        )

    def allowed(
        self, clean: Batch, made: Batch, budget: Budget, target: "Target", seeds: Sequence[int]
    ) -> np.ndarray:
        """At most so many characters away (Levenshtein)."""
        limit, pairs = int(budget.value), zip(clean.texts, made.texts, strict=True)
        return np.array([within(before, after, limit) for before, after in pairs], bool)


def within(first: str, second: str, limit: int) -> bool:
    """Whether the Levenshtein distance of two texts is at most `limit`.

    Source: Ukkonen 1985: only a band of 2 limit + 1 diagonals can hold such a distance.
    """
    if abs(len(first) - len(second)) > limit:
        return False
    far = limit + 1
    row = {column: column for column in range(min(limit, len(second)) + 1)}
    for i, own in enumerate(first, start=1):
        low, high = max(i - limit, 0), min(i + limit, len(second))
        above, row = row, {}
        for j in range(low, high + 1):
            ways = [above.get(j, far) + 1, row.get(j - 1, far) + 1]
            if j > 0:
                ways.append(above.get(j - 1, far) + (own != second[j - 1]))
            row[j] = min(ways)
        if min(row.values()) > limit:
            return False
    return row[len(second)] <= limit


def _attack(search: TextSearch, rng: np.random.Generator, positions: int) -> None:
    """Run one search to its end."""
    while search.open:
        before, share = search.left, max(search.left // _SHARE, 2)
        end = search.target.read_until(search.text)
        letters = sorted({*ascii_lowercase, *search.text[:end].lower()})
        places = np.arange(2 * end + 1)
        if len(places) > share // 2:
            places = np.sort(rng.choice(places, share // 2, replace=False))
        probes = [_probed(search.text, place) for place in places.tolist()]
        order = np.argsort(search.margins(probes), kind="stable")
        tried = min(positions, max(share // 2 // len(letters), 1))
        chosen = places[order[:tried]].tolist()
        texts = (_edited(search.text, p, one) for p in chosen for one in _others(letters, p))
        found = dict.fromkeys(text for text in texts if text != search.text)
        moved = search.advance(list(found))
        stuck = moved is None and len(places) == 2 * end + 1  # the same would be tried again
        if stuck or search.left == before:
            return


def _others(letters: Sequence[str], place: int) -> list[str]:
    """What is tried at a place; nothing, too, where it is a character."""
    return [*letters, *([""] if place % 2 else [])]


def _probed(text: str, place: int) -> str:
    blank = place % 2 and text[place // 2] == " "
    return _edited(text, place, "" if blank else " ")


def _edited(text: str, place: int, letter: str) -> str:
    """A text with a letter, or nothing, at a place: 2 i lies before character i, 2 i + 1 is it."""
    start = place // 2
    return text[:start] + letter + text[start + place % 2 :]

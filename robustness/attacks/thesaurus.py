"""Thesaurus: words replaced by those of a table, where they matter most to the model."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from robustness.attacks.base import Info
from robustness.attacks.text_search import EditAttack, TextSearch
from robustness.attacks.typos import replace_words, split
from robustness.attacks.words import WORD, GivenTable, Rewording, alternatives

if TYPE_CHECKING:
    from robustness.text_target import TextTarget


class Thesaurus(Rewording, EditAttack, frozen=True):
    """Words replaced by others of a table, one after the other; the model is asked alone.

    The words that the table knows are ordered as by `typos`. Then, in this order, every alternative
    of a word is tried, and the worst is kept if it is worse. Words that the model does not read are
    left alone.

    Source: Jin et al. 2020 (TextFooler), algorithm 1; the table in the place of embeddings and
    part-of-speech tags, and the leave-one-out score on the margin are our own.
    """

    info: ClassVar[Info] = Info(
        title="Thesaurus",
        paper="Jin et al. 2020 (TextFooler)",
        references=("arXiv:1907.11932",),
        what="words replaced by those of a table that you give, where they matter most",
        input="text",
        access="scores",
        budget="edits",
    )
    name: Literal["thesaurus"] = "thesaurus"
    table: GivenTable

    def improver(self, target: "TextTarget") -> Callable[[TextSearch, int], None]:
        """See `EditAttack.improver`."""
        ways = alternatives(self.table)

        def improve(search: TextSearch, seed: int) -> None:
            """Replace words."""
            parts, places = split(search.text, target, WORD)
            places = [place for place in places if ways(parts[place])]
            draw = np.random.default_rng(int(seed))
            replace_words(search, parts, places, ways, draw, self.queries // 2)

        return improve

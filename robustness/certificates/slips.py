"""Slips: texts whose label no mistyped words can change, whatever the slips.

A slip swaps two neighboring letters of a word, leaves a letter out, or inserts or replaces one by
a letter from a to z, never the first; words are runs of three letters or more, and each is mistyped
at most once. This is the set of what the attack `typos` may do. A slip can change the number of
pieces of a word, and so all that follows: `models.analysis.words` finds the worst case.
"""

import string
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import numpy as np
from pydantic import Field

from robustness.attacks.base import Budget, Info
from robustness.attacks.text_search import Edits
from robustness.attacks.typos import WORD, every_slip
from robustness.attacks.worst_pieces import table_of
from robustness.certificates.base import Proof, Worst
from robustness.kinds import NotPossible
from robustness.parsing import Counts

if TYPE_CHECKING:
    from torch import nn

    from data.tokenizer import TextTokenizer
    from models.analysis.words import Word
    from robustness.target import Target
    from robustness.text_target import TextTarget


class Slips(Proof, Edits, frozen=True):
    """What no slips of the keyboard change, exactly."""

    info: ClassVar[Info] = Info(
        title="Slips",
        paper="our own",
        what="no attack but a proof, against any mistyped words",
        input="text",
        access="token-wise",
        budget="edits",
        role="proof",
        counts="slips",
    )
    name: Literal["slips"] = "slips"
    edits: Counts = Field(default=[1, 2, 5], description="words of a text that are mistyped")

    def notes(self, num_classes: int) -> Iterator[str]:
        """What the proof is about."""
        yield (
            "Slips proves of words of three letters or more, each mistyped once at most: two "
            "neighboring letters swapped, a letter left out, or one from a to z inserted or in the "
            "place of another, never the first. Texts with words of other letters stay open."
        )

    def describe(self, budget: Budget) -> str:
        """See `Attack.describe`."""
        return f"with {int(budget.value):,} word{'s' * (budget.value != 1)} mistyped"

    def check(self, target: "Target") -> None:
        """See `Proof.check`."""
        super().check(target)
        if not cast("TextTarget", target).require_tokenizer().vocabulary().continues.any():
            raise NotPossible(f"attacks: {self.label!r} needs word pieces, got other tokens")

    def refused(self, model: "nn.Module") -> str | None:
        """See `Proof.refused`."""
        from models.analysis.substitutions import refusal

        return refusal(model)

    def most(self, target: "Target", budget: Budget) -> int:
        """See `Proof.most`."""
        return int(budget.value)

    def finder(
        self, target: "Target", budget: Budget, before: Callable[[], object]
    ) -> Callable[[str, int], Worst]:
        """See `Proof.finder`; the margin is 0 where the worst case is not known."""
        from models.analysis.words import worst_words

        model, count = cast("TextTarget", target), int(budget.value)
        table = table_of(model)
        given, rounding = table.everywhere(model.max_len, before), table.rounding(model.max_len)
        reader = Reader(model.require_tokenizer())

        def find(text: str, label: int) -> Worst:
            """The worst case of one text."""
            words = reader.words(text, count)
            if words is None:
                return Worst(margin=0.0, rounding=rounding)
            [found] = worst_words(given, table.bias, words, label, [count])
            starts = np.cumsum([0, *(len(word.pieces) for word in words)])[found.words]
            return Worst(
                margin=found.margin, rounding=rounding, places=starts.tolist(),
                pieces=[int(pieces[0]) for pieces in found.pieces],
            )  # fmt: skip

        return find


class Reader:
    """Words of texts with all that slips make of them; what was read of a word is kept."""

    def __init__(self, tokenizer: "TextTokenizer") -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, Word] = {}

    def words(self, text: str, count: int) -> "list[Word] | None":
        """The words of a text; None where they might be read otherwise together than alone."""
        if any(not word[0].isascii() for word in WORD.finditer(text)):
            return None
        found = []
        for one in self._tokenizer.words(text):
            start, stop = int(one.spans[0, 0]), int(one.spans[-1, 1])
            written = text[start:stop]
            word = self._known.get(written)
            if word is None:
                word = self._known[written] = self._read(written)
            inside = len(WORD.findall(written))
            # A mark of HTML is read as a blank, so that no slip may make one.
            marked = text[max(start - 1, 0) : start] == "<" and written.startswith("b")
            if not np.array_equal(word.pieces, one.ids) or (inside > 1 < count) or marked:
                return None
            found.append(word)
        return found

    def _read(self, written: str) -> "Word":
        from models.analysis.words import Word

        forms = [written]
        for word in WORD.finditer(written):
            slips = every_slip(word[0], string.ascii_lowercase)
            forms += [written[: word.start()] + slip + written[word.end() :] for slip in slips]
        own, *rows = self._tokenizer.ids(forms, len(written) + 2)
        return Word(pieces=own, others=_by_length(rows))


def _by_length(rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Different rows in matrices, one for each length."""
    lengths = sorted({len(row) for row in rows})
    return [np.unique([row for row in rows if len(row) == n], axis=0) for n in lengths]

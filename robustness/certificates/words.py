"""Words: texts whose label no replaced words can change, whichever of what may stand there.

A replaced word can have another number of pieces, and so all that follows moves;
`models.analysis.words` finds the worst case. The set of `slips` is that of the attack `typos`: two
neighboring letters swapped, a letter left out, or one from a to z inserted or in the place of
another, never the first, in words of three letters or more. The set of `synonyms` is a table that
the user gives.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from pydantic import Field

from robustness.attacks.base import Budget, Info
from robustness.attacks.words import GivenTable, Rewording, Solver, require_word_pieces
from robustness.certificates.base import Proof, Worst
from robustness.parsing import Counts

if TYPE_CHECKING:
    from torch import nn

    from robustness.target import Target
    from robustness.text_target import TextTarget


class WordProof(Proof, Rewording, frozen=True):
    """What no words in the place of others change, exactly; each is replaced once at most."""

    def check(self, target: "Target") -> None:
        """See `Proof.check`."""
        super().check(target)
        require_word_pieces(cast("TextTarget", target))

    def refused(self, model: "nn.Module") -> str | None:
        """See `Proof.refused`."""
        from models.analysis.substitutions import refusal

        return refusal(model)

    def most(self, target: "Target", budget: Budget) -> int:
        """See `Proof.most`."""
        return min(int(budget.value), cast("TextTarget", target).max_len)

    def finder(
        self, target: "Target", budget: Budget, before: Callable[[], object]
    ) -> Callable[[str, int], Worst]:
        """See `Proof.finder`; the margin is 0 where the worst case is not known."""
        solver = Solver(cast("TextTarget", target), self.ways, int(budget.value), before)

        def find(text: str, label: int) -> Worst:
            """The worst case of one text, each word by its first piece."""
            if (known := solver.worst(text, label)) is None:
                return Worst(margin=0.0, rounding=solver.rounding)
            places, found = known
            return Worst(
                margin=found.margin,
                rounding=solver.rounding,
                places=[sum(len(one.word.pieces) for one in places[:i]) for i in found.words],
                pieces=[int(pieces[0]) for pieces in found.pieces],
            )

        return find


class Slips(WordProof, frozen=True):
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
            "place of another, never the first. Texts with words of other letters, "
            "or of more than 100, stay open."
        )

    def describe(self, budget: Budget) -> str:
        """See `Attack.describe`."""
        return f"with {int(budget.value):,} word{'s' * (budget.value != 1)} mistyped"


class Synonyms(WordProof, frozen=True):
    """What no words of a given table change, exactly."""

    info: ClassVar[Info] = Info(
        title="Synonyms",
        paper="our own",
        what="no attack but a proof, against words in the place of others by a table that you give",
        input="text",
        access="token-wise",
        budget="edits",
        role="proof",
    )
    name: Literal["synonyms"] = "synonyms"
    edits: Counts = Field(default=[1, 2, 5], description="words of a text that are replaced")
    table: GivenTable

    def notes(self, num_classes: int) -> Iterator[str]:
        """What the proof is about."""
        alike = sum(map(len, self.table.values()))
        yield (
            f"Synonyms proves of a given table of {len(self.table):,} words with {alike:,} "
            "alternatives: each word, a run of letters, is replaced by one of its own at most, "
            "in its own capitals. Whether they mean the same is up to the table."
        )

    def describe(self, budget: Budget) -> str:
        """See `Attack.describe`."""
        return f"with {int(budget.value):,} word{'s' * (budget.value != 1)} of the table replaced"

"""Substitutions: texts whose label no replaced pieces can change, whatever they are.

Proved is the model itself, and not a smoothed one: a text counts as proved if the label stays the
first class of every sequence of as many pieces that differs at so many places at most. Any entry
of the table of embeddings counts as a piece, also where no text gives it, so that the proof holds
of more than texts. Only the first `max_len` pieces are read, and so only these are replaced.

Where pieces do not see each other the worst case is exact. Gates of several experts and eigenvalues
computed from the text see them all: then the margin is a bound below the worst case.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from pydantic import Field

from robustness.attacks.base import Budget, Info
from robustness.attacks.text_search import Edits
from robustness.attacks.worst_pieces import table_of
from robustness.certificates.base import Proof, Worst
from robustness.parsing import Counts

if TYPE_CHECKING:
    from torch import nn

    from robustness.target import Target
    from robustness.text_target import TextTarget


class Substitutions(Proof, Edits, frozen=True):
    """What no substitution of pieces changes, exactly or by a bound."""

    methods: ClassVar[tuple[str, ...]] = ("exact", "bounds of gates and eigenvalues")
    info: ClassVar[Info] = Info(
        title="Substitutions",
        paper="our own",
        what="no attack but a proof, against any pieces in the place of others",
        input="text",
        access="weights",
        budget="edits",
        role="proof",
        counts="pieces",
    )
    name: Literal["substitutions"] = "substitutions"
    edits: Counts = Field(default=[1, 2, 5, 10], description="pieces of a text that are replaced")

    def notes(self, num_classes: int) -> Iterator[str]:
        """What the proof is about, and what makes it possible."""
        yield (
            "Substitutions proves of texts with as many pieces, any entry of the table of "
            "embeddings in the place of any other; where no text gives the worst sequence, an "
            "input may be open though nothing misleads the model. The proof is exact of models "
            "that see the position of each piece, but no interaction between pieces; of others "
            "it is a bound, and more inputs may hold than it proves."
        )

    def describe(self, budget: Budget) -> str:
        """See `Attack.describe`."""
        return f"with {int(budget.value):,} piece{'s' * (budget.value != 1)} replaced"

    def refused(self, model: "nn.Module") -> str | None:
        """See `Proof.refused`."""
        from models.analysis.bounds import refusal

        return refusal(model)

    def most(self, target: "Target", budget: Budget) -> int:
        """See `Proof.most`."""
        return min(int(budget.value), cast("TextTarget", target).max_len)

    def finder(
        self, target: "Target", budget: Budget, before: Callable[[], object]
    ) -> Callable[[str, int], Worst]:
        """See `Proof.finder`."""
        import torch

        from models.analysis.bounds import Bounds
        from models.analysis.substitutions import refusal

        model, torch_model = cast("TextTarget", target), target.require_torch_model()
        exact = refusal(torch_model) is None
        bounds = (
            table_of(model)
            if exact
            else model.known(Bounds, torch_model, lambda: Bounds(torch_model))
        )

        def find(text: str, label: int) -> Worst:
            """The worst case of one text."""
            [row] = model.require_tokenizer().ids([text], model.max_len)
            bounds.extend(len(row), before)
            [found] = bounds.worst(torch.from_numpy(row), label, [int(budget.value)])
            return Worst(
                margin=found.margin, rounding=bounds.rounding(len(row)), places=found.places,
                pieces=found.pieces, method=int(not exact),
            )  # fmt: skip

        return find

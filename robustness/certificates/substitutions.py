"""Substitutions: texts whose label no replaced pieces can change, whatever they are.

Proved is the model itself, and not a smoothed one: a text counts as proved if the label stays the
first class of every sequence of as many pieces that differs at so many places at most. Any entry
of the table of embeddings counts as a piece, also where no text gives it, so that the proof holds
of more than texts. Only the first `max_len` pieces are read, and so only these are replaced.

Where pieces do not see each other the worst case is exact. Gates of several experts and eigenvalues
computed from the text see them all: then the margin is a bound below the worst case.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, cast
from weakref import WeakKeyDictionary

import numpy as np
from pydantic import Field, field_validator

from robustness.attacks.base import Batch, Budget, Info, Proof, Search, distinct
from robustness.attacks.worst_pieces import table_of
from robustness.parsing import Counts

if TYPE_CHECKING:
    from torch import nn

    from models.analysis.bounds import Bounds
    from models.analysis.substitutions import Substitutions as Table
    from robustness.target import Target
    from robustness.text_target import TextTarget

_BOUNDS: "WeakKeyDictionary[object, tuple[str, Bounds]]" = WeakKeyDictionary()
"""By PyTorch model: the digest of its target, and what was found of its pieces."""


class Substitutions(Proof, frozen=True):
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

    @field_validator("edits")
    @classmethod
    def _distinct_edits(cls, edits: list[int]) -> list[int]:
        return distinct("edits", edits)

    def cost(self, num_classes: int) -> int:
        """One forward pass; the table of pieces is made once, whatever the texts."""
        return 1

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

    def prove(
        self, target: "Target", batch: Batch, budget: Budget, search: Search
    ) -> dict[str, np.ndarray]:
        """See `Proof.prove`."""
        import torch

        self.check(target)
        model, count = cast("TextTarget", target), int(budget.value)
        exact, before = _is_exact(model), None if search.meter is None else search.meter.before
        table: Table | Bounds = table_of(model) if exact else _bounds_of(model)
        rows = model.require_tokenizer().ids(batch.texts, model.max_len)
        replaced = np.full((2, count, len(rows)), -1, np.int64)
        margin, rounding = np.zeros(len(rows)), np.zeros(len(rows))
        for i, (row, label) in enumerate(zip(rows, batch.labels, strict=True)):
            if before is not None:
                before()
            table.extend(len(row), before)
            tokens = torch.from_numpy(row.astype(np.int64))
            [found] = table.worst(tokens, int(label), [count])
            margin[i], rounding[i] = found.margin, table.rounding(len(row))
            replaced[:, : len(found.places), i] = found.places, found.pieces
            if search.meter is not None:
                search.meter.after(1)
        return {
            "margin": margin,
            "rounding": rounding,
            "places": replaced[0],
            "pieces": replaced[1],
            "method": np.full(len(rows), not exact, np.int64),
        }


def _is_exact(target: "TextTarget") -> bool:
    from models.analysis.substitutions import refusal

    return refusal(target.require_torch_model()) is None


def _bounds_of(target: "TextTarget") -> "Bounds":
    """The bounds of a model, kept from call to call."""
    from models.analysis.bounds import Bounds

    model = target.require_torch_model()
    digest, found = _BOUNDS.get(model, ("", None))
    if found is None or digest != target.digest:
        found = Bounds(model)
        _BOUNDS[model] = target.digest, found
    return found

"""Worst words: of mistyped words, or of those of a table, the worst, known from the weights."""

from typing import TYPE_CHECKING, ClassVar, Literal, cast

import numpy as np
from pydantic import Field

from robustness.attacks.base import Batch, Budget, Info, Search
from robustness.attacks.words import Rewording, Solver, Table
from robustness.attacks.worst_pieces import margins_of

if TYPE_CHECKING:
    from robustness.target import Target
    from robustness.text_target import TextTarget


class WorstWords(Rewording, frozen=True):
    """The worst case of the proofs `slips` and `synonyms`, written as a text and tried.

    The served model is asked about the clean text and this one; of the two the one with the
    smaller margin is taken. A text that the proofs leave open stays as it is. Nothing is drawn.
    """

    info: ClassVar[Info] = Info(
        title="Worst Words",
        paper="our own",
        what="writes down the worst mistyped words, or the worst ones of a table",
        input="text",
        access="token-wise",
        budget="edits",
    )
    name: Literal["worst-words"] = "worst-words"
    table: Table = Field(default_factory=dict[str, list[str]])

    def cost(self, num_classes: int) -> int:
        """The clean text and the worst one."""
        return 2

    def run(self, target: "Target", batch: Batch, budget: Budget, search: Search) -> Batch:
        """See `Attack.run`.

        Raises:
            NotPossible: the model's worst case is not known.
        """
        model, made = cast("TextTarget", target), list[tuple[str, int, int]]()
        before = None if search.meter is None else search.meter.before
        solver = Solver(model, self.ways, int(budget.value), before)
        for text, label in zip(batch.texts, batch.labels.tolist(), strict=True):
            tried = [(text, 0)]
            found = margins_of(model, [text], label, search)
            if found[0] > 0 or not search.leave:
                tried += solver.written(text, label)
                found += margins_of(model, [one for one, _ in tried[1:]], label, search)
            made.append((*tried[found.index(min(found))], len(tried)))
        texts, edits, queries = zip(*made, strict=True) if made else ((), (), ())
        spent = {"edits": np.array(edits, np.int64), "queries": np.array(queries, np.int64)}
        return Batch(inputs=list(texts), labels=batch.labels, found=spent)

"""What attacks on texts share: a greedy search on the served model, within budgets."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from pydantic import Field, field_validator

from robustness.attacks.base import Attack, Batch, Budget, Search, distinct
from robustness.kinds import NotPossible
from robustness.logits import label_rank, margin
from robustness.parsing import Count, Counts

if TYPE_CHECKING:
    from robustness.target import Target
    from robustness.text_target import TextTarget

_TOGETHER = 32  # candidates scored before it is seen whether one is misclassified


class Edits(Attack, frozen=True):
    """What counts single edits of texts."""

    edits: Counts = Field(default=[5], description="changes of a text at most")

    @field_validator("edits")
    @classmethod
    def _distinct_edits(cls, edits: list[int]) -> list[int]:
        return distinct("edits", edits)


class CountedEdits(Edits, frozen=True):
    """An attack on texts by single edits, whose number is limited."""

    def allowed(
        self, clean: Batch, made: Batch, budget: Budget, target: "Target", seeds: Sequence[int]
    ) -> np.ndarray:
        """At most so many words, or tokens, are others than before.

        An expression of ListOps has a token more or less after some edits.
        """
        model = cast("TextTarget", target)
        found = []
        for before, after in zip(clean.texts, made.texts, strict=True):
            if model.relabel is not None:
                changed = abs(len(before.split()) - len(after.split()))
            else:
                changed = differences(*(self.units(text, model) for text in (before, after)))
            found.append(before == after or changed <= budget.value)
        return np.array(found, bool)

    def units(self, text: str, target: "TextTarget") -> Sequence[object]:
        """What an edit changes one of."""
        raise NotImplementedError


class EditAttack(CountedEdits, frozen=True):
    """An attack by single edits, each tried on the served model.

    Of each text it tells "edits" and "queries", model evaluations with a gradient included.
    """

    queries: Count = Field(default=1000, description="model evaluations of one input at most")

    def cost(self, num_classes: int) -> int:
        """The queries, and what the clean text takes."""
        return self.queries + 2

    def run(self, target: "Target", batch: Batch, budget: Budget, search: Search) -> Batch:
        """See `Attack.run`; a text that cannot be changed for the worse is as it was."""
        model = cast("TextTarget", target)
        improve, ends = self.improver(model), list[TextSearch]()
        allowed = {"edits": int(budget.value), "queries": self.queries}
        for text, label, seed in zip(batch.texts, batch.labels, search.seeds, strict=True):
            ends.append(TextSearch(model, text, int(label), search, **allowed))
            if ends[-1].open:
                improve(ends[-1], seed)
        return Batch(
            inputs=[end.text for end in ends],
            labels=np.array([end.label for end in ends], np.int64),
            found={
                "edits": np.array([end.edits for end in ends], np.int64),
                "queries": np.array([end.queries for end in ends], np.int64),
            },
        )

    def improver(self, target: "TextTarget") -> "Callable[[TextSearch, int], None]":
        """What runs a search on texts of a model to its end, with a seed for its draws."""
        raise NotImplementedError


def differences(old: Sequence[object], new: Sequence[object]) -> int:
    """Places at which two sequences differ; all of them where their lengths do."""
    if len(old) != len(new):
        return max(len(old), len(new))
    return sum(a != b for a, b in zip(old, new, strict=True))


class TextSearch:
    """The attack on one text: where it stands and what it may still spend.

    A text is attacked alone, in batches of its own candidates, so that its result is the same
    whatever other texts there are. The search moves to the candidate with the smallest margin, and
    only downwards: the text at hand is always the worst one found. The path does not depend on the
    number of edits allowed: more of them continue it.

    Attributes:
        target: the model.
        text: the worst text found.
        label: its true class.
        settings: how the attack is run.
        edits: how many edits away from the clean text it is.
        queries: model evaluations spent; the one of the clean text is the first.
        margin: the logit of the true class less the largest other one, on the served model.

    Raises:
        ValueError: a text that the model cannot read, or a label that is no class or not the true
            one where it can be computed.
    """

    def __init__(
        self,
        target: "TextTarget",
        text: str,
        label: int,
        settings: Search,
        *,
        edits: int,
        queries: int,
    ) -> None:
        if not 0 <= label < len(target.labels):
            raise ValueError(f"labels must lie in [0, {len(target.labels)}), got {label}")
        if target.relabel is not None and target.relabel(text) != label:
            raise NotPossible(f"labels must be what the texts say, {target.relabel(text)}: {label}")
        self.target, self.settings = target, settings
        self._edits_allowed, self._queries_allowed = edits, queries
        self.text, self.label, self.edits, self.queries = text, label, 0, 0
        self._fooled, self.margin = self._scored([text], [label])[0]

    @property
    def left(self) -> int:
        """Model evaluations that may still be spent."""
        return self._queries_allowed - self.queries

    @property
    def open(self) -> bool:
        """Whether another edit may be looked for."""
        found = self._fooled and self.settings.leave
        return not found and self.edits < self._edits_allowed and self.left > 0

    def true_class(self, text: str) -> int | None:
        """The class of a changed text; None where it is no text of the task."""
        return self.label if self.target.relabel is None else self.target.relabel(text)

    def spend(self) -> None:
        """Count a model evaluation that the caller makes."""
        self.queries += 1

    def margins(self, texts: Sequence[str]) -> np.ndarray:
        """Margins (N,) of texts that are no candidates, each against its own class.

        Infinite for a text that the model cannot read or that is no text of the task; it costs
        nothing. The caller sees to it that the queries suffice.
        """
        readable = self.target.readable(texts)
        known = self._known((i, texts[i]) for i, able in enumerate(readable) if able)
        found = np.full(len(texts), np.inf)
        scored = self._scored([texts[i] for i, _ in known], [label for _, label in known])
        found[[i for i, _ in known]] = [value for _, value in scored]
        return found

    def advance(self, candidates: Sequence[str]) -> int | None:
        """Score texts that are one edit further, and move to the worst if it is worse.

        Candidates that are no texts of the task are refused, without a query; those that the
        queries do not reach are left out.

        Returns:
            The index of the candidate moved to, or None.
        """
        known = self._known(enumerate(candidates))[: self.left]
        best = None
        for start in range(0, len(known), _TOGETHER):
            part = known[start : start + _TOGETHER]
            scored = self._scored([candidates[i] for i, _ in part], [label for _, label in part])
            standings = [
                (not fooled, value, index, label)
                for (index, label), (fooled, value) in zip(part, scored, strict=True)
            ]
            best = min(standings if best is None else [best, *standings])
            if self.settings.leave and not best[0]:
                break
        if best is None or best[:2] >= (not self._fooled, self.margin):
            return None
        right, self.margin, index, self.label = best
        self.text, self._fooled = candidates[index], not right
        self.edits += 1
        return index

    def _known(self, texts: Iterable[tuple[int, str]]) -> list[tuple[int, int]]:
        """Places and true classes of those texts that are texts of the task."""
        classes = [(index, self.true_class(text)) for index, text in texts]
        return [(index, label) for index, label in classes if label is not None]

    def _scored(self, texts: Sequence[str], labels: Sequence[int]) -> list[tuple[bool, float]]:
        """Of every text whether it is misclassified, and the margin of its class."""
        if not texts:
            return []
        logits = self.target.predict(texts, self.settings.meter)
        self.queries += len(texts)
        truth = np.array(labels, np.int64)
        fooled, margins = label_rank(logits, truth) > 0, margin(logits, truth)
        return list(zip(fooled.tolist(), margins.tolist(), strict=True))

"""What attacks on texts share: a greedy search on the served model, within budgets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from pydantic import Field, field_validator

from robustness.attacks.base import Attack, Batch, Budget, NotPossible, distinct
from robustness.logits import label_rank, margin
from robustness.parsing import Count, Counts
from robustness.progress import Meter

if TYPE_CHECKING:
    from robustness.target import Target
    from robustness.text_target import TextTarget

_TOGETHER = 32  # candidates scored before it is seen whether one is misclassified


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackedTexts:
    """What an attack made of N texts.

    Attributes:
        texts: the changed texts; a text that could not be changed for the worse is as it was.
        labels: (N,) int64 their true classes; another one than before only where it is recomputed.
        edits: (N,) int64 edits of each.
        queries: (N,) int64 model evaluations spent on each, those with a gradient included.
    """

    texts: list[str]
    labels: np.ndarray
    edits: np.ndarray
    queries: np.ndarray

    @classmethod
    def of(cls, searches: "Sequence[TextSearch]") -> Self:
        """The results of finished searches."""
        return cls(
            texts=[search.text for search in searches],
            labels=np.array([search.label for search in searches], np.int64),
            edits=np.array([search.edits for search in searches], np.int64),
            queries=np.array([search.queries for search in searches], np.int64),
        )

    def batch(self) -> Batch:
        """The texts with their labels, edits and queries."""
        found = {"edits": self.edits, "queries": self.queries}
        return Batch(inputs=self.texts, labels=self.labels, found=found)


class EditAttack(Attack, frozen=True):
    """An attack on texts by single edits, each tried on the served model."""

    edits: Counts = Field(default=[5], description="changes of a text at most")
    queries: Count = Field(default=1000, description="model evaluations of one input at most")

    @field_validator("edits")
    @classmethod
    def _distinct_edits(cls, edits: list[int]) -> list[int]:
        return distinct("edits", edits)

    def budgets(self) -> list[Budget]:
        """Its numbers of edits."""
        return [Budget(kind="edits", value=float(count), text=str(count)) for count in self.edits]

    def cost(self, num_classes: int) -> int:
        """The queries, and what the clean text takes."""
        del num_classes
        return self.queries + 2

    def allowed(
        self,
        clean: Batch,
        adversarial: Batch,
        budget: Budget,
        *,
        target: "Target | None" = None,
        seeds: Sequence[int] = (),
    ) -> np.ndarray:
        """At most so many words, or tokens, are others than before.

        An expression of ListOps has a token more or less after some edits.
        """
        del seeds
        model = of_texts(target)
        computed = model.relabel is not None
        found = []
        for before, after in zip(clean.texts, adversarial.texts, strict=True):
            if computed:
                changed = abs(len(before.split()) - len(after.split()))
            else:
                changed = _differences(*(self.units(text, model) for text in (before, after)))
            found.append(before == after or changed <= budget.value)
        return np.array(found, bool)

    def units(self, text: str, target: "TextTarget") -> Sequence[object]:
        """What an edit changes one of."""
        raise NotImplementedError


def of_texts(target: "Target | None") -> "TextTarget":
    """A target that reads texts.

    Raises:
        TypeError: it does not.
    """
    from robustness.text_target import TextTarget

    if not isinstance(target, TextTarget):
        raise TypeError("an attack on texts needs a model of texts")
    return target


def _differences(old: Sequence[object], new: Sequence[object]) -> int:
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

    Args:
        target: the model.
        text: the clean text.
        label: its true class.
        edits: edits allowed, at least 1.
        queries: model evaluations allowed, at least 1; the one of the clean text is the first.
        leave: end at the first text that is misclassified; else go on to the end of the budgets.
        meter: told of every model evaluation.

    Attributes:
        text: the worst text found.
        label: its true class.
        edits: how many edits away from the clean text it is.
        queries: model evaluations spent.
        margin: the logit of the true class less the largest other one, on the served model.

    Raises:
        ValueError: a budget below 1, a text that the model cannot read, or a label that is no class
            or not the true one where it can be computed.
    """

    def __init__(
        self,
        target: "TextTarget",
        text: str,
        label: int,
        *,
        edits: int,
        queries: int,
        leave: bool = True,
        meter: Meter | None = None,
    ) -> None:
        for name, value in (("edits", edits), ("queries", queries)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= label < len(target.labels):
            raise ValueError(f"labels must lie in [0, {len(target.labels)}), got {label}")
        if target.relabel is not None and target.relabel(text) != label:
            raise NotPossible(f"labels must be what the texts say, {target.relabel(text)}: {label}")
        self._target, self._leave, self._meter = target, leave, meter
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
        found = self._fooled and self._leave
        return not found and self.edits < self._edits_allowed and self.left > 0

    def true_class(self, text: str) -> int | None:
        """The class of a changed text; None where it is no text of the task."""
        return self.label if self._target.relabel is None else self._target.relabel(text)

    def spend(self) -> None:
        """Count a model evaluation that the caller makes."""
        self.queries += 1

    def margins(self, texts: Sequence[str]) -> np.ndarray:
        """Margins (N,) of texts that are no candidates, each against its own class.

        Infinite for a text that the model cannot read or that is no text of the task; it costs
        nothing. The caller sees to it that the queries suffice.
        """
        rows = self._target.tokenizer.ids(texts, 1)
        readable = [
            (i, text) for i, (text, row) in enumerate(zip(texts, rows, strict=True)) if len(row)
        ]
        known = self._known(readable)
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
            if self._leave and not best[0]:
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
        logits = self._target.predict(texts, self._meter)
        self.queries += len(texts)
        truth = np.array(labels, np.int64)
        fooled, margins = label_rank(logits, truth) > 0, margin(logits, truth)
        return list(zip(fooled.tolist(), margins.tolist(), strict=True))


def checked(texts: Sequence[str], **columns: Sequence[int]) -> None:
    """Refuse columns of another length than the texts.

    Raises:
        ValueError: naming the column.
    """
    for name, column in columns.items():
        if len(column) != len(texts):
            raise ValueError(f"{name} must be one per text, {len(texts)}, got {len(column)}")

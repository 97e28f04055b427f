"""Stored inputs scored again by the functions that evaluate, and compared with the stored results.

Everything is scored three times: as it is, and with the label's logit moved down and up by what
batches, runtimes and kinds of processor do to the last bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robustness.attacks.base import TOLERANCE, Batch, Search, Variant
from robustness.chunks import cell_shards
from robustness.logits import label_rank
from robustness.progress import Meter
from robustness.report.schema import Report
from robustness.scoring import (
    GRADIENTS,
    Answers,
    AttackResult,
    CleanResult,
    CorruptionResult,
    ModelResult,
    Scoring,
    ask,
    combine,
    score,
    score_clean,
)
from robustness.spec import Cell
from robustness.target import Target
from robustness.verify.evidence import Inputs, changed_inputs, nearest_distances, take
from robustness.verify.outcome import Outcome, Refuted

_SHIFTS = (0, -1, 1)  # in the order of `Decision`
_ERRORS = {"fp32": 1e-4}  # of a difference of logits, as a share of the largest one
_LOW_PRECISION_ERROR = 3e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether the label comes before all other classes, for N inputs.

    Attributes:
        exact: (N,) bool, by the logits as they are.
        certain: (N,) bool, whatever another runtime or batch does to their last bits.
        plausible: (N,) bool, if those bits fall well.
    """

    exact: np.ndarray
    certain: np.ndarray
    plausible: np.ndarray

    @classmethod
    def by_ranks(cls, ranks: Sequence[np.ndarray]) -> "Decision":
        """From the label's ranks (N,) as they are, with its logit moved down, and moved up."""
        exact, certain, plausible = (rank == 0 for rank in ranks)
        return cls(exact=exact, certain=certain, plausible=plausible)

    def contradicts(self, reported: np.ndarray) -> np.ndarray:
        """Where reported flags (N,) cannot be right."""
        return (reported & ~self.plausible) | (~reported & self.certain)

    def flipped(self, reported: np.ndarray) -> np.ndarray:
        """Where reported flags (N,) differ, and precision explains it."""
        return (reported != self.exact) & ~self.contradicts(reported)


def shifted(logits: np.ndarray, labels: np.ndarray, share: float) -> np.ndarray:
    """Logits (N, K) with the label's moved by a share of the largest one."""
    moved = logits.astype(np.float64)
    size = np.abs(moved).max(axis=1)
    moved[np.arange(len(moved)), labels] += share * np.where(np.isfinite(size), size, 0.0)
    return moved


def may_be_best(logits: np.ndarray, index: np.ndarray, *, error: float) -> np.ndarray:
    """Where a reported class (N,) may be the one with the largest logit, (N,) bool."""
    known = (index >= 0) & (index < logits.shape[1])
    chosen = np.where(known, index, 0)
    raised = label_rank(shifted(logits, chosen, error), chosen) == 0
    return known & (raised | ~np.isfinite(logits).all(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """Chosen rows of a chunk.

    Attributes:
        start: index of the chunk's first input.
        whole: all inputs of the chunk, with labels.
        rows: positions of the chosen ones.
        clean: their scores without an attack, for each shift.
    """

    start: int
    whole: Batch
    rows: np.ndarray
    clean: list[CleanResult]

    @property
    def indices(self) -> np.ndarray:
        return self.start + self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescorer:
    """Scores one model's stored inputs again.

    Attributes:
        report: what is checked.
        folder: of the evaluation.
        target: the model.
        stored: its results as they are stored.
        meter: told of every model evaluation.
        outcome: takes what is found.
    """

    report: Report
    folder: Path
    target: Target
    stored: ModelResult
    meter: Meter
    outcome: Outcome

    @property
    def error(self) -> float:
        """Error of a logit, as a share of the largest one."""
        return _ERRORS.get(self.target.runtime.precision, _LOW_PRECISION_ERROR)

    def check(self, start: int, inputs: Inputs, rows: np.ndarray) -> None:
        """Score some inputs of one chunk, unchanged and under everything that the spec asks for.

        Args:
            start: index of the first input of the chunk.
            inputs: all of the chunk.
            rows: positions of the chosen ones within it.
        """
        whole = Batch(inputs=inputs, labels=self.stored.clean.label[start : start + len(inputs)])
        served = self.target.predict(take(inputs, rows), self.meter)
        labels, blind = whole.labels[rows], np.zeros(len(rows), bool)
        clean = [
            score_clean(moved, moved, moved, labels, blind)
            for moved in (shifted(served, labels, k * self.error) for k in _SHIFTS)
        ]
        chosen = _Chosen(start=start, whole=whole, rows=rows, clean=clean)
        self._compare("clean", self.stored.clean.rank, [each.rank for each in clean], chosen)
        self._compare_class("on the clean input", self.stored.clean.index, served, chosen)
        for cell, found in zip(self.report.spec.cells, self.stored.cells, strict=True):
            try:
                if isinstance(found, AttackResult):
                    self._check_attack(chosen, cell, found)
                elif isinstance(found, CorruptionResult):
                    self._check_corruption(chosen, cell, found)
            except Refuted as problem:
                self.outcome.refuted.append(f"{self.target.name}: {problem}")

    def _check_attack(self, chosen: _Chosen, cell: Cell, found: AttackResult) -> None:
        """Score what one attack made at one budget."""
        where = f"{cell.attack.label} {cell.budget.text}"
        shards = cell_shards(self.target, chosen.start, cell)
        scored: list[list[Scoring]] = [[] for _ in _SHIFTS]
        served: list[np.ndarray] = []
        for shard in shards:
            made = changed_inputs(
                self.folder, shard, self.target, chosen.whole, cell.budget, self.report.seed
            )
            size = shard.part.size(chosen.whole, made, cell.budget)[chosen.rows]
            batch = Batch(inputs=take(made.inputs, chosen.rows), labels=made.labels[chosen.rows])
            answers = ask(self.target, batch.inputs, self.meter)
            served.append(answers.served)
            for each, k in zip(scored, _SHIFTS, strict=True):
                each.append(
                    score(_moved(answers, batch.labels, k * self.error), batch.labels, size)
                )
        variants: list[Variant] = [shard.variant for shard in shards]
        again = [
            combine(clean, parts, variants)
            for clean, parts in zip(chosen.clean, scored, strict=True)
        ]
        for name in ("robust", "confirmed", "confirmed_8bit"):
            ranks = [getattr(each, name) for each in again]
            self._compare(f"{where}, {name}", getattr(found, name), ranks, chosen)
        for row, way in enumerate(v for v in GRADIENTS if v in variants):
            ranks = [each.by_variant[row] for each in again]
            self._compare(f"{where}, gradients {way}", found.by_variant[row], ranks, chosen)
        for row, shard in enumerate(shards):
            decision = Decision.by_ranks([each.by_part[row] for each in again])
            wrong = decision.contradicts(found.by_part[row][chosen.indices] == 0)
            self._refute(f"{where}, {shard.part.label} alone", chosen.indices[wrong])
        self._check_shown(where, found, scored, served, chosen)
        if cell.attack.info.minimal:
            near = [nearest_distances(self.folder, s, chosen.whole, chosen.rows) for s in shards]
            self._compare_numbers(
                "the nearest adversarial input", found.nearest, np.minimum.reduce(near), chosen
            )

    def _check_shown(
        self,
        where: str,
        found: AttackResult,
        scored: Sequence[Sequence[Scoring]],
        served: Sequence[np.ndarray],
        chosen: _Chosen,
    ) -> None:
        """Compare what is shown of each input: the part that was worst for it."""
        worst, rows = found.worst[chosen.indices], np.arange(len(chosen.rows))
        logits = np.stack(served)[worst, rows]
        self._compare_class(f"under {where}", found.index, logits, chosen)
        distance = np.stack([each.distance for each in scored[0]])[worst, rows]
        self._compare_numbers(f"{where}, distance", found.distance, distance, chosen)
        low, high = (np.stack([each.margin for each in one])[worst, rows] for one in scored[1:])
        margins = found.margin[chosen.indices]
        wrong = ~((margins >= low - TOLERANCE) & (margins <= high + TOLERANCE))
        self._refute(f"{where}, margin", chosen.indices[wrong & np.isfinite(low)])

    def _check_corruption(self, chosen: _Chosen, cell: Cell, found: CorruptionResult) -> None:
        """Corrupt inputs again: they are not stored, because they follow from seed and input."""
        inputs = take(chosen.whole.inputs, chosen.rows)
        batch = Batch(inputs=inputs, labels=chosen.whole.labels[chosen.rows])
        search = Search(seeds=cell.attack.seeds(self.report.seed, cell.budget, inputs))
        made = cell.attack.run(self.target, batch, [cell.budget], search)[cell.budget]
        logits = self.target.predict(made.inputs, self.meter)
        ranks = [
            label_rank(shifted(logits, batch.labels, k * self.error), batch.labels) for k in _SHIFTS
        ]
        where = cell.budget.text.replace(":", " ")
        self._compare(where, found.rank, ranks, chosen)
        self._compare_class(f"under {where}", found.index, logits, chosen)

    def _compare(
        self, what: str, stored: np.ndarray, ranks: Sequence[np.ndarray], chosen: _Chosen
    ) -> None:
        """Compare stored ranks of all inputs with those found again of the chosen ones."""
        flags, decision = stored[chosen.indices] == 0, Decision.by_ranks(ranks)
        self.outcome.flags += len(flags)
        self._refute(what, chosen.indices[decision.contradicts(flags)])
        self.outcome.flips += [
            f"{self._sample(i)}: {what}" for i in chosen.indices[decision.flipped(flags)]
        ]

    def _compare_class(
        self, where: str, stored: np.ndarray, logits: np.ndarray, chosen: _Chosen
    ) -> None:
        possible = may_be_best(logits, stored[chosen.indices], error=self.error)
        self._refute(f"the class predicted {where}", chosen.indices[~possible])

    def _compare_numbers(
        self, what: str, stored: np.ndarray, again: np.ndarray, chosen: _Chosen
    ) -> None:
        same = np.isclose(stored[chosen.indices], again, rtol=1e-6, atol=TOLERANCE)
        self._refute(what, chosen.indices[~same])

    def _refute(self, what: str, indices: np.ndarray) -> None:
        self.outcome.refuted += [f"{self._sample(i)}: {what} is not as reported" for i in indices]

    def _sample(self, index: int) -> str:
        return f"{self.target.name}, input {index + 1} ({self.report.samples[index].name})"


def _moved(answers: Answers, labels: np.ndarray, share: float) -> Answers:
    return Answers(
        torch_model=shifted(answers.torch_model, labels, share),
        served=shifted(answers.served, labels, share),
        rounded=shifted(answers.rounded, labels, share),
    )

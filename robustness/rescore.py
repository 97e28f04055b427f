"""Stored inputs scored again by the functions that evaluate, and compared with the stored results.

Everything is scored three times: as it is, and with the label's logit moved down and up by what
batches, runtimes and kinds of processor do to the last bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from robustness import store
from robustness.attacking import cell_shards, stored_batch
from robustness.attacks.base import TOLERANCE, Batch, Budget, Search
from robustness.certificates.base import Proof
from robustness.kinds import NotPossible, Variant
from robustness.logits import label_rank
from robustness.progress import Meter
from robustness.report.schema import Report
from robustness.results import (
    GRADIENTS,
    AttackResult,
    CleanResult,
    CorruptionResult,
    ModelResult,
    ProofResult,
    Scoring,
)
from robustness.scoring import Answers, ask, combine, score, score_clean
from robustness.spec import Cell
from robustness.store import Shard
from robustness.target import Target
from robustness.tasks import Classification

_ERRORS = {"fp32": 1e-4}  # of a difference of logits, as a share of the largest one
_LOW_PRECISION_ERROR = 3e-2
_CLASSES = Classification()


class Refuted(Exception):
    """Something that a report rests on is not as it says; the message tells what."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What scoring a report's stored inputs again says of it.

    Attributes:
        models: the models and the runtimes that scored again.
        inputs: how many inputs were scored again.
        flags: how many flags were compared.
        flips: flags that differ where a logit's last bits decide: precision explains them.
        refuted: what is not as the report says.
        notes: what was not checked, and what differs without harm.
    """

    models: list[str] = field(default_factory=list[str])
    inputs: int = 0
    flags: int = 0
    flips: list[str] = field(default_factory=list[str])
    refuted: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    @property
    def confirmed(self) -> bool:
        """Whether nothing was refuted."""
        return not self.refuted


def decide(reported: np.ndarray, ranks: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Where reported flags (N,) cannot be right, and where they differ by precision alone.

    Args:
        reported: whether the label comes before all other classes.
        ranks: (N,) of the label as it is, with its logit moved down, and moved up.
    """
    exact, certain, plausible = (rank == 0 for rank in ranks)
    wrong = (reported & ~plausible) | (~reported & certain)
    return wrong, (reported != exact) & ~wrong


def may_be_best(logits: np.ndarray, index: np.ndarray, *, error: float) -> np.ndarray:
    """Where a reported class (N,) may be the one with the largest logit, (N,) bool."""
    known = (index >= 0) & (index < logits.shape[1])
    chosen = np.where(known, index, 0)
    raised = label_rank(_CLASSES.shifted(logits, chosen, error), chosen) == 0
    return known & (raised | ~np.isfinite(logits).all(axis=1))


def rescore(
    report: Report,
    folder: Path,
    stored: ModelResult,
    clean: np.ndarray | list[str],
    rows: np.ndarray,
    meter: Meter,
    outcome: Outcome,
) -> None:
    """Score the inputs of some rows again, unchanged and under all that the spec asks for.

    `clean` are all inputs of the model whose results are `stored`; `outcome` takes what differs.
    """
    target = stored.target
    served = f"{target.runtime.name}, {target.runtime.precision}"
    outcome.models.append(f"{target.name} {target.version} ({served})")
    for chosen in store.ranges(len(clean)):
        own = rows[(rows >= chosen.start) & (rows < chosen.stop)] - chosen.start
        if len(own):
            meter.stage = f"{target.name}: input {chosen.stop}"
            labels = stored.clean.label[chosen.start : chosen.stop]
            whole = Batch(inputs=clean[chosen.start : chosen.stop], labels=labels)
            _Rescorer(report, folder, stored, chosen.start, whole, own, meter, outcome).check()


@dataclass(frozen=True, slots=True)
class _Rescorer:
    """Scores some rows of one range of inputs again; see `rescore`."""

    report: Report
    folder: Path
    stored: ModelResult
    start: int
    whole: Batch
    rows: np.ndarray
    meter: Meter
    outcome: Outcome

    @property
    def target(self) -> Target:
        """The model."""
        return self.stored.target

    @property
    def at(self) -> np.ndarray:
        """Indices of the chosen inputs."""
        return self.start + self.rows

    @property
    def shifts(self) -> list[float]:
        """By what the label's logit is moved, as a share of the largest one: not, down, up."""
        error = _ERRORS.get(self.target.runtime.precision, _LOW_PRECISION_ERROR)
        return [0.0, -error, error]

    def check(self) -> None:
        """Score the inputs, and compare."""
        chosen = self.whole.take(self.rows)
        served = self.target.predict(chosen.inputs, self.meter)
        blind = np.zeros(len(self.rows), bool)
        task, labels = self.target.task, chosen.labels
        moved = [task.shifted(served, labels, share) for share in self.shifts]
        clean = [score_clean(task, each, each, each, labels, blind) for each in moved]
        self._flags("clean", self.stored.clean.rank, [each.rank for each in clean])
        self._classes("on the clean input", self.stored.clean.index, served)
        for cell, found in zip(self.report.spec.cells, self.stored.cells, strict=True):
            try:
                if isinstance(found, AttackResult):
                    self._attack(cell, found, clean)
                elif isinstance(found, CorruptionResult):
                    self._corruption(cell, found, chosen)
                elif isinstance(found, ProofResult) and isinstance(cell.attack, Proof):
                    self._proof(cell.attack, cell.budget, found, chosen)
            except (NotPossible, Refuted, store.Lost) as problem:
                self.outcome.refuted.append(f"{self.target.name}: {problem}")

    def _attack(self, cell: Cell, found: AttackResult, clean: Sequence[CleanResult]) -> None:
        """Score what one attack made at one budget."""
        where = f"{cell.attack.label} {cell.budget.text}"
        shards = cell_shards(self.target, self.start, cell)
        variants: list[Variant] = [shard.variant for shard in shards]
        scored: list[list[Scoring]] = [[] for _ in self.shifts]
        task = self.target.task
        for position, shard in enumerate(shards):
            made = self._made(shard, cell.budget)
            size = shard.part.size(self.whole, made, cell.budget)[self.rows]
            chosen = made.take(self.rows)
            answers = ask(self.target, chosen.inputs, self.meter, in_8bit=shard.part.in_8bit)
            for each, share in zip(scored, self.shifts, strict=True):
                moved = Answers(*(task.shifted(logits, chosen.labels, share) for logits in answers))
                each.append(score(task, moved, chosen.labels, size))
            worst = found.worst[self.at] == position
            self._classes(f"under {where}", found.index, answers.served, where=worst)
        again = [
            combine(own, each, variants, keeps=task.keeps)
            for own, each in zip(clean, scored, strict=True)
        ]
        for name in ("robust", "confirmed", "confirmed_8bit"):
            ranks = [getattr(each, name) for each in again]
            self._flags(f"{where}, {name}", getattr(found, name), ranks)
        for row, way in enumerate(v for v in GRADIENTS if v in variants):
            ranks = [each.by_variant[row] for each in again]
            self._flags(f"{where}, gradients {way}", found.by_variant[row], ranks)
        for row, shard in enumerate(shards):
            wrong, _ = self._decide(found.by_part[row], [one.by_part[row] for one in again])
            self._refute(f"{where}, {shard.part.label} alone", wrong)
        self._shown(where, found, scored)
        if cell.attack.info.minimal:
            near = np.minimum.reduce([self._nearest(shard)[self.rows] for shard in shards])
            self._numbers("the nearest adversarial input", found.nearest, near, near)

    def _shown(self, where: str, found: AttackResult, scored: Sequence[Sequence[Scoring]]) -> None:
        """Compare what is shown of each input: the part that was worst for it."""
        worst, rows = found.worst[self.at], np.arange(len(self.rows))
        size = np.stack([each.distance for each in scored[0]])[worst, rows]
        self._numbers(f"{where}, distance", found.distance, size, size)
        low, high = (np.stack([each.margin for each in one])[worst, rows] for one in scored[1:])
        known = np.isfinite(low)
        low, high = np.where(known, low, -np.inf), np.where(known, high, np.inf)
        self._numbers(f"{where}, margin", found.margin, low, high)
        answered = [[each.probability for each in one] for one in scored]
        sure, error = np.nan_to_num(answered, nan=-1)[:, worst, rows], 10 * self.shifts[-1]
        stored = np.nan_to_num(found.probability, nan=-1)
        low, high = sure.min(axis=0) - error, sure.max(axis=0) + error
        self._numbers(f"{where}, probability", stored, low, high)

    def _corruption(self, cell: Cell, found: CorruptionResult, chosen: Batch) -> None:
        """Corrupt inputs again: they are not stored, because they follow from seed and input."""
        search = Search(seeds=cell.attack.seeds(self.report.seed, cell.budget, chosen.inputs))
        made = cell.attack.run(self.target, chosen, cell.budget, search)
        logits = self.target.predict(made.inputs, self.meter)
        task = self.target.task
        moved = [task.shifted(logits, chosen.labels, share) for share in self.shifts]
        where = cell.budget.text.replace(":", " ")
        self._flags(where, found.rank, [task.rank(each, chosen.labels) for each in moved])
        self._classes(f"under {where}", found.index, logits)

    def _proof(self, proof: Proof, budget: Budget, found: ProofResult, chosen: Batch) -> None:
        """Prove again."""
        again = proof.prove(self.target, chosen, budget, Search(seeds=[], meter=self.meter))
        self.outcome.flags += len(self.rows)
        for name in ("margin", "rounding"):
            what = f"{proof.label} {budget.text}, {name}"
            self._numbers(what, getattr(found, name), again[name], again[name])

    def _made(self, shard: Shard, budget: Budget) -> Batch:
        """The adversarial inputs of a chunk; an edit of an expression changes its label."""
        path, whole, target = shard.path(self.folder), self.whole, self.target
        stored = store.whole(path)
        try:
            found = stored_batch(stored, whole, budget)
            _check_form(found, whole)
            seeds = shard.part.seeds(self.report.seed, budget, whole.inputs)
            allowed = shard.part.allowed(whole, found, budget, target, seeds)
        except (KeyError, TypeError, ValueError) as error:
            raise Refuted(f"{path.name} does not hold what it should") from error
        if not allowed.all():
            index = shard.start + int(np.flatnonzero(~allowed)[0])
            raise Refuted(
                f"{path.name}: {target.reads} {index + 1} is changed by more than {shard.attack} "
                f"may at {budget.text}"
            )
        return replace(found, labels=target.true_classes(found.inputs, whole.labels))

    def _nearest(self, shard: Shard) -> np.ndarray:
        """Distances (n,) of the nearest adversarial images of a chunk; inf where there is none."""
        path = shard.path(self.folder)
        stored = store.whole(path)
        distance, made = stored["nearest"], replace(self.whole, inputs=stored["adversarial"])
        if distance.shape != self.whole.labels.shape:
            raise Refuted(f"{path.name} does not hold what it should")
        found = np.isfinite(distance)
        size = shard.part.size(self.whole, made, shard.budget)
        if not np.allclose(distance[found], size[found], rtol=1e-6, atol=TOLERANCE):
            raise Refuted(f"{path.name} tells other distances than those of its images")
        return distance

    def _flags(self, what: str, stored: np.ndarray, ranks: Sequence[np.ndarray]) -> None:
        """Compare stored ranks of all inputs with those found again of the chosen ones."""
        wrong, flipped = self._decide(stored, ranks)
        self.outcome.flags += len(self.rows)
        self._refute(what, wrong)
        self.outcome.flips += [f"{self._sample(i)}: {what}" for i in self.at[flipped]]

    def _decide(
        self, stored: np.ndarray, ranks: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `decide`; the number of what is wrong in an input lies between the two others."""
        own = stored[self.at]
        if self.target.task.answer == "class":
            return decide(own == 0, ranks)
        exact, most, least = ranks
        wrong = (own > most) | (own < least)
        return wrong, (own != exact) & ~wrong

    def _classes(
        self, what: str, stored: np.ndarray, logits: np.ndarray, *, where: np.ndarray | bool = True
    ) -> None:
        if self.target.task.answer != "class":  # of a class of most pixels there may be two
            return
        error = self.shifts[-1]
        wrong = ~may_be_best(logits, stored[self.at], error=error)
        self._refute(f"the class predicted {what}", wrong & where)

    def _numbers(self, what: str, stored: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
        own = stored[self.at]
        inside = (own >= low - TOLERANCE) & (own <= high + TOLERANCE)
        self._refute(what, ~(inside | np.isclose(own, low, rtol=1e-6, atol=0)))

    def _refute(self, what: str, wrong: np.ndarray) -> None:
        found = [f"{self._sample(index)}: {what} is not as reported" for index in self.at[wrong]]
        self.outcome.refuted += found

    def _sample(self, index: int) -> str:
        return f"{self.target.name}, input {index + 1} ({self.report.samples[index].name})"


def _check_form(found: Batch, whole: Batch) -> None:
    """Raise ValueError where stored inputs have another number, shape or type."""
    if isinstance(whole.inputs, np.ndarray):
        same = found.images.shape == whole.images.shape and found.images.dtype == np.float32
    else:
        same = len(found.texts) == len(whole.texts)
    if not same:
        raise ValueError("other inputs than were attacked")

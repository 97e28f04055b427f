"""One range of a model's stored inputs, judged again and compared with the report's flags."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robustness import store as shards
from robustness.attacks.base import TOLERANCE, Batch, Search, Variant
from robustness.chunks import cell_shards
from robustness.progress import Meter
from robustness.report.schema import AttackFlags, ModelFlags, Report
from robustness.spec import Cell
from robustness.target import Target
from robustness.text_target import TextTarget
from robustness.verify.evidence import Inputs, changed_inputs, nearest_distances
from robustness.verify.judgement import Held, all_held, float_error, held, names_best
from robustness.verify.outcome import Outcome, Refuted


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is judged, by whom, and where it is written down.

    Attributes:
        report: what is checked.
        position: of the model in the report.
        folder: of the evaluation.
        target: the model.
        meter: told of every model evaluation.
        outcome: takes what is found.
    """

    report: Report
    position: int
    folder: Path
    target: Target
    meter: Meter
    outcome: Outcome

    @property
    def error(self) -> float:
        """Error of a logit, as a share of the largest one."""
        return float_error(self.target.runtime.precision)

    def flags(self, indices: np.ndarray) -> list[ModelFlags]:
        """The report's flags of some samples."""
        return [self.report.samples[i].models[self.position] for i in indices]

    def compare(self, what: str, told: Sequence[bool], found: Held, indices: np.ndarray) -> None:
        """Compare flags with a judgement of the same samples."""
        flags = np.array(told, bool)
        self.outcome.flags += len(flags)
        for i in indices[found.contradicts(flags)]:
            self.outcome.refuted.append(f"{self._sample(i)}: {what} is not as the report says")
        for i in indices[found.flipped(flags)]:
            self.outcome.flips.append(f"{self._sample(i)}: {what}")

    def compare_classes(
        self, what: str, told: Sequence[int], logits: np.ndarray, indices: np.ndarray
    ) -> None:
        """Compare predicted classes with logits of the same samples."""
        index = np.clip(np.array(told, np.int64), 0, logits.shape[1] - 1)
        for i in indices[~names_best(logits, index, error=self.error)]:
            self.outcome.refuted.append(
                f"{self._sample(i)}: the class predicted {what} is not as the report says"
            )

    def _sample(self, index: int) -> str:
        return f"{self.target.name}, input {index + 1} ({self.report.samples[index].name})"


def judge_range(bench: Bench, start: int, clean: Inputs, rows: np.ndarray) -> None:
    """Judge some inputs of one range, clean and under every attack.

    Args:
        bench: what is judged, and where it is written down.
        start: index of the first input of the range.
        clean: its inputs.
        rows: positions of the chosen ones within it.
    """
    indices = start + rows
    flags = bench.flags(indices)
    samples = [bench.report.samples[i] for i in indices]
    labels = np.array(
        [f.clean.index if s.label is None else s.label for s, f in zip(samples, flags, strict=True)]
    )
    chosen = _rows(clean, rows)
    logits = bench.target.predict(chosen, bench.meter)
    upright = held(logits, labels, error=bench.error)
    bench.compare("clean", [f.clean.correct for f in flags], upright, indices)
    bench.compare_classes("on the clean input", [f.clean.index for f in flags], logits, indices)
    part = _Part(start=start, clean=clean, rows=rows, labels=labels, upright=upright)
    attacks = [c for c in bench.report.spec.cells if c.attack.info.role == "attack"]
    for position, cell in enumerate(attacks):
        try:
            _check_cell(bench, part, cell, [found.attacks[position] for found in flags])
        except Refuted as problem:
            bench.outcome.refuted.append(f"{bench.target.name}: {problem}")
    _check_corruptions(bench, part, flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Chosen rows of a range: labels (n,) and whether the model is right on the clean inputs."""

    start: int
    clean: Inputs
    rows: np.ndarray
    labels: np.ndarray
    upright: Held

    @property
    def indices(self) -> np.ndarray:
        return self.start + self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What a shard shows for the chosen rows: logits (n, K) served, sizes (n,) of the change."""

    logits: np.ndarray
    size: np.ndarray | None


def _check_cell(bench: Bench, part: _Part, cell: Cell, told: Sequence[AttackFlags]) -> None:
    """Judge what one attack made at one point."""
    where = f"{cell.attack.label} {cell.budget.text}"
    said = {(flags.name, flags.norm, flags.eps, flags.eps_value) for flags in told}
    if said != {(cell.attack.label, cell.attack.norm_name, cell.budget.text, cell.budget.value)}:
        raise Refuted(f"the flags of {where} speak of another attack")
    made = cell_shards(bench.target, part.start, cell)
    kinds: dict[str, list[Held]] = {"robust": [], "confirmed": [], "confirmed_8bit": []}
    shown: dict[tuple[str, Variant], _Shown] = {}
    for shard in made:
        changed, labels, size = _changed(bench, part, shard, cell)
        logits = _logits(bench, changed)
        shown[shard.part.label, shard.variant] = _Shown(logits=logits["confirmed"], size=size)
        for kind, found in logits.items():
            kinds[kind].append(held(found, labels, error=bench.error))
    for kind, found in kinds.items():
        flags = [getattr(one, kind) for one in told]
        if found and None not in flags:
            bench.compare(f"{where}, {kind}", flags, all_held([part.upright, *found]), part.indices)
    _check_ways(bench, part, where, told, list(zip(made, kinds["robust"], strict=True)))
    _check_shown(bench, part, where, told, shown)
    if cell.attack.info.minimal:
        _check_minimal(bench, part, cell, made)


def _check_ways(
    bench: Bench,
    part: _Part,
    where: str,
    told: Sequence[AttackFlags],
    judged: Sequence[tuple[shards.Shard, Held]],
) -> None:
    """Compare the flags of each way of taking gradients, where there are two."""
    ways: set[Variant] = {shard.variant for shard, _ in judged if shard.variant != "plain"}
    wanted = ways if len(ways) > 1 else set[Variant]()
    if any(set(flags.gradients or {}) != wanted for flags in told):
        raise Refuted(f"the flags of {where} do not tell the two ways of taking gradients apart")
    for way in sorted(wanted):
        flags = [bool((one.gradients or {}).get(way)) for one in told]
        own = [found for shard, found in judged if shard.variant in (way, "plain")]
        found = all_held([part.upright, *own])
        bench.compare(f"{where}, gradients {way}", flags, found, part.indices)


def _check_shown(
    bench: Bench,
    part: _Part,
    where: str,
    told: Sequence[AttackFlags],
    shown: dict[tuple[str, Variant], _Shown],
) -> None:
    for row, flags in enumerate(told):
        found = shown.get((flags.part, flags.variant))
        if found is None:
            raise Refuted(f"{where} has no part {flags.part} with {flags.variant} gradients")
        chosen = slice(row, row + 1)
        bench.compare_classes(
            f"under {where}", [flags.adversarial_index], found.logits[chosen], part.indices[chosen]
        )
        if found.size is not None and abs(flags.distance - found.size[row]) > TOLERANCE:
            raise Refuted(f"{where} moved input {part.indices[row] + 1} by another distance")


def _check_minimal(bench: Bench, part: _Part, cell: Cell, made: Sequence[shards.Shard]) -> None:
    """Compare the distances of the nearest adversarial images with those stored."""
    clean = np.asarray(part.clean)
    each = [nearest_distances(bench.folder, shard, clean, part.rows) for shard in made]
    for index, found in zip(part.indices, np.minimum.reduce(each), strict=True):
        [flags] = bench.flags(np.array([index]))
        told = flags.minimal.get(cell.attack.norm_name or "Linf")
        if not np.isclose(np.inf if told is None else told, found, rtol=1e-6, atol=TOLERANCE):
            raise Refuted(f"the nearest adversarial image of input {index + 1} is not as told")


def _changed(
    bench: Bench, part: _Part, shard: shards.Shard, cell: Cell
) -> tuple[Inputs, np.ndarray, np.ndarray | None]:
    """The chosen rows of a shard, their labels, and how far images were moved.

    An edit of ListOps may change a label.
    """
    clean = Batch(inputs=part.clean, labels=np.zeros(len(part.clean), np.int64))
    target, seed = bench.target, bench.report.seed
    found = changed_inputs(bench.folder, shard, target, clean, cell.budget, seed)
    chosen = _rows(found.inputs, part.rows)
    if target.reads == "image":
        return chosen, part.labels, shard.part.size(clean, found, cell.budget)[part.rows]
    relabel = target.relabel if isinstance(target, TextTarget) else None
    if relabel is None:
        return chosen, part.labels, None
    own = [relabel(text) for text in chosen]
    labels = [old if new is None else new for old, new in zip(part.labels, own, strict=True)]
    return chosen, np.array(labels, np.int64), None


def _logits(bench: Bench, changed: Inputs) -> dict[str, np.ndarray]:
    """Logits by each judge, under the name of the flag that follows from them."""
    target, meter = bench.target, bench.meter
    served = target.predict(changed, meter)
    found = {
        "robust": served if target.twin is None else target.predict_twin(changed, meter),
        "confirmed": served,
    }
    if target.reads == "image":
        found["confirmed_8bit"] = target.predict_8bit(changed, served, meter)
    return found


def _check_corruptions(bench: Bench, part: _Part, flags: Sequence[ModelFlags]) -> None:
    """Corrupt the inputs again: what was judged is not stored, because it follows from the seed."""
    cells = [c for c in bench.report.spec.cells if c.attack.info.role == "corruption"]
    batch = Batch(inputs=_rows(part.clean, part.rows), labels=part.labels)
    for position, cell in enumerate(cells):
        told = [found.corruptions[position] for found in flags]
        search = Search(seeds=cell.attack.seeds(bench.report.seed, cell.budget, batch.inputs))
        corrupted = cell.attack.run(bench.target, batch, [cell.budget], search)[cell.budget]
        logits = bench.target.predict(corrupted.inputs, bench.meter)
        where = cell.budget.text.replace(":", " ")
        found = held(logits, part.labels, error=bench.error)
        bench.compare(where, [one.correct for one in told], found, part.indices)
        bench.compare_classes(f"under {where}", [o.index for o in told], logits, part.indices)


def _rows(inputs: Inputs, rows: np.ndarray) -> Inputs:
    return inputs[rows] if isinstance(inputs, np.ndarray) else [inputs[row] for row in rows]

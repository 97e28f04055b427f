"""One range of a model's stored inputs, judged again and compared with the report's flags."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robustness import store as shards
from robustness.catalog import AttackName, Variant
from robustness.chunks import cell_shards
from robustness.noise_cells import corrupted_inputs
from robustness.progress import Meter
from robustness.report.schema import AttackFlags, ModelFlags, Report
from robustness.scoring import TOLERANCE, change_size, in_8bit
from robustness.spec import Cell
from robustness.target import Target, predict_served, predict_twin
from robustness.text_cells import twin_logits
from robustness.text_target import TextTarget
from robustness.verify.evidence import Inputs, changed_images, changed_texts, nearest_distances
from robustness.verify.judgement import Held, all_held, float_error, held, names_best
from robustness.verify.outcome import Outcome, Refuted
from robustness.worst import place_of


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
    target: Target | TextTarget
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
    logits = _served(bench, chosen)
    upright = held(logits, labels, error=bench.error)
    bench.compare("clean", [f.clean.correct for f in flags], upright, indices)
    bench.compare_classes("on the clean input", [f.clean.index for f in flags], logits, indices)
    part = _Part(start=start, clean=clean, rows=rows, labels=labels, upright=upright)
    attacks = [c for c in bench.report.spec.cells if c.attack.kind.norms or c.attack.kind.on_texts]
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
    where = f"{cell.attack.name} {cell.point}"
    ball = cell.attack.ball if cell.attack.kind.norms else None
    said = {(flags.name, flags.norm, flags.eps, flags.eps_value) for flags in told}
    if said != {(cell.attack.name, ball, cell.point, place_of(cell).value)}:
        raise Refuted(f"the flags of {where} speak of another attack")
    made = cell_shards(bench.target, part.start, cell)
    kinds: dict[str, list[Held]] = {"robust": [], "confirmed": [], "confirmed_8bit": []}
    shown: dict[tuple[AttackName, Variant], _Shown] = {}
    for shard in made:
        changed, labels = _changed(bench, part, shard, cell)
        logits = _logits(bench, changed)
        size = _size(part, changed, shard)
        shown[shard.part.name, shard.variant] = _Shown(logits=logits["confirmed"], size=size)
        for kind, found in logits.items():
            kinds[kind].append(held(found, labels, error=bench.error))
    for kind, found in kinds.items():
        flags = [getattr(one, kind) for one in told]
        if found and None not in flags:
            bench.compare(f"{where}, {kind}", flags, all_held([part.upright, *found]), part.indices)
    _check_ways(bench, part, where, told, list(zip(made, kinds["robust"], strict=True)))
    _check_shown(bench, part, where, told, shown)
    if cell.attack.name == "fab-t":
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
    shown: dict[tuple[AttackName, Variant], _Shown],
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
        told = flags.minimal.get(cell.attack.ball)
        if not np.isclose(np.inf if told is None else told, found, rtol=1e-6, atol=TOLERANCE):
            raise Refuted(f"the nearest adversarial image of input {index + 1} is not as told")


def _size(part: _Part, changed: Inputs, shard: shards.Shard) -> np.ndarray | None:
    """How far images were moved; texts have no such distance."""
    if not isinstance(part.clean, np.ndarray):
        return None
    return change_size(part.clean[part.rows], np.asarray(changed), shard.part.ball)


def _changed(
    bench: Bench, part: _Part, shard: shards.Shard, cell: Cell
) -> tuple[Inputs, np.ndarray]:
    """The chosen rows of a shard, and their labels: an edit of ListOps may change them."""
    if isinstance(part.clean, np.ndarray):
        found = changed_images(bench.folder, shard, cell.point, part.clean, part.rows)
        return found, part.labels
    target = bench.target
    if not isinstance(target, TextTarget):
        raise Refuted(f"{target.name} reads images, and the stored inputs are texts")
    seeds = [
        shards.input_seed(
            bench.report.seed, cell.attack.name, text.encode("utf-8", "surrogatepass")
        )
        for text in part.clean
    ]
    texts = changed_texts(bench.folder, shard, target, part.clean, seeds)
    chosen = [texts[row] for row in part.rows]
    if target.relabel is None:
        return chosen, part.labels
    own = [target.relabel(text) for text in chosen]
    labels = [old if new is None else new for old, new in zip(part.labels, own, strict=True)]
    return chosen, np.array(labels, np.int64)


def _logits(bench: Bench, changed: Inputs) -> dict[str, np.ndarray]:
    """Logits by each judge, under the name of the flag that follows from them."""
    served = _served(bench, changed)
    target, meter = bench.target, bench.meter
    if isinstance(target, TextTarget):
        twin = twin_logits(target, list(changed), served, meter)
        return {"robust": twin, "confirmed": served}
    images = np.asarray(changed)
    return {
        "robust": served if target.twin is None else predict_twin(target, images, meter),
        "confirmed": served,
        "confirmed_8bit": predict_served(target, in_8bit(images, target.image_spec), meter),
    }


def _served(bench: Bench, inputs: Inputs) -> np.ndarray:
    if isinstance(bench.target, TextTarget):
        return bench.target.predict(list(inputs), bench.meter)
    return predict_served(bench.target, np.asarray(inputs), bench.meter)


def _check_corruptions(bench: Bench, part: _Part, flags: Sequence[ModelFlags]) -> None:
    """Corrupt the inputs again: what was judged is not stored, because it follows from the seed."""
    if not isinstance(bench.target, Target):
        return
    images = np.asarray(part.clean)[part.rows]
    for position in range(len(flags[0].corruptions)):
        told = [found.corruptions[position] for found in flags]
        name, severity = told[0].name, told[0].severity
        corrupted = corrupted_inputs(images, name, severity, seed=bench.report.seed)
        logits = predict_served(bench.target, corrupted, bench.meter)
        where = f"{name} {severity}"
        found = held(logits, part.labels, error=bench.error)
        bench.compare(where, [one.correct for one in told], found, part.indices)
        bench.compare_classes(f"under {where}", [o.index for o in told], logits, part.indices)


def _rows(inputs: Inputs, rows: np.ndarray) -> Inputs:
    return inputs[rows] if isinstance(inputs, np.ndarray) else [inputs[row] for row in rows]

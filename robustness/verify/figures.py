"""Whether the figures of a report follow from its flags."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from robustness.gate import parse_gate
from robustness.intervals import mcnemar, wilson
from robustness.report.figures import Figure, ModelFigures
from robustness.report.schema import Report
from robustness.worst import place_name, place_of


def wrong_figures(report: Report) -> Iterator[str]:
    """Each figure that is not what the report's own flags give, in words."""
    for position, model in enumerate(report.summary.models):
        for name, told, flags in _pairs(report, position, model):
            share = float(np.mean(flags))
            value = told.top1 if isinstance(told, Figure) else told
            if not _equal(value, share):
                told_as = "missing" if value is None else f"{value:.4f}"
                yield f"{model.name}: {name} is {told_as}, and its flags give {share:.4f}"
            elif isinstance(told, Figure) and not _interval_fits(told, flags):
                yield f"{model.name}: the interval of {name} does not follow from its flags"
    yield from _comparison(report)
    yield from _gate(report)
    if report.summary.reliable == bool(report.summary.warnings):
        yield "the report has warnings and is called reliable, or has none and is not"


def _pairs(
    report: Report, position: int, model: ModelFigures
) -> Iterator[tuple[str, Figure | float | None, Sequence[bool]]]:
    """Every figure with the flags of which it is the mean."""
    flags = [sample.models[position] for sample in report.samples]
    yield "clean accuracy", model.clean, _right(report, position)
    for i, attack in enumerate(model.attacks):
        own = [found.attacks[i] for found in flags]
        where = f"{attack.name} {attack.eps}"
        yield f"robust accuracy under {where}", attack.robust, [f.robust for f in own]
        yield f"confirmed accuracy under {where}", attack.confirmed, [f.confirmed for f in own]
        if attack.confirmed_8bit is not None:
            in_8bit = [bool(f.confirmed_8bit) for f in own]
            yield f"accuracy in 8 bit under {where}", attack.confirmed_8bit, in_8bit
    for budget, held in _worst(report, position).items():
        yield f"worst case at {budget}", model.worst.get(budget), held
    if model.attacks or model.largest is not None:
        yield "worst case at the largest budget", model.largest, _largest(report, position)
    for i, corruption in enumerate(model.corruptions):
        right = [found.corruptions[i].correct for found in flags]
        yield f"{corruption.name} {corruption.severity}", corruption.accuracy, right


def _worst(report: Report, position: int) -> dict[str, list[bool]]:
    """For each budget whether a sample held under all attacks that had it."""
    held: dict[str, list[bool]] = {}
    cells = [c for c in report.spec.cells if c.attack.kind.norms or c.attack.kind.on_texts]
    for i, cell in enumerate(cells):
        own = [sample.models[position].attacks[i].robust for sample in report.samples]
        budget = place_name(report.spec, place_of(cell))
        before = held.get(budget, own)
        held[budget] = [a and b for a, b in zip(before, own, strict=True)]
    return held


def _largest(report: Report, position: int) -> list[bool]:
    """Whether a sample held under all attacks at the largest budget of each kind."""
    cells = [c for c in report.spec.cells if c.attack.kind.norms or c.attack.kind.on_texts]
    places = [place_of(cell) for cell in cells]
    most = {one.kind: max(p.value for p in places if p.kind == one.kind) for one in places}
    chosen = [i for i, place in enumerate(places) if place.value == most[place.kind]]
    flags = [sample.models[position].attacks for sample in report.samples]
    return [all(own[i].robust for i in chosen) for own in flags]


def _comparison(report: Report) -> Iterator[str]:
    """What is wrong with the comparison of two models."""
    other = report.summary.comparison
    if other is None:
        return
    first, second = ({"clean": _right(report, i)} | _worst(report, i) for i in (0, 1))
    for where, pair in [("clean", other.clean), *other.worst.items()]:
        if where not in first:
            yield f"the models are compared at {where}, where nothing was measured"
            continue
        both = list(zip(first[where], second[where], strict=True))
        only_first, only_second = both.count((True, False)), both.count((False, True))
        counts = only_first, only_second, both.count((True, True)), both.count((False, False))
        told = pair.only_first, pair.only_second, pair.both, pair.neither
        if counts != told or not _equal(pair.p_value, mcnemar(only_first, only_second)):
            yield f"the comparison at {where} does not follow from the flags"


def _right(report: Report, position: int) -> list[bool]:
    return [sample.models[position].clean.correct for sample in report.samples]


def _gate(report: Report) -> Iterator[str]:
    gate = report.summary.gate
    if gate is None:
        return
    first = report.summary.models[0]
    figure = first.clean if gate.metric == "clean_accuracy" else first.largest
    rule = parse_gate(gate.text)
    if figure is not None and not _equal(gate.value, figure.ci[0]):
        yield f"the gate compares {gate.value:.4f}, and the lower bound is {figure.ci[0]:.4f}"
    trusted = not any(warning.model == first.name for warning in report.summary.warnings)
    if gate.passed and not (trusted and rule.holds(gate.value)):
        yield f"the gate {gate.text} is said to hold at {gate.value:.4f}"


def _interval_fits(figure: Figure, flags: Sequence[bool]) -> bool:
    low, high = wilson(sum(flags), len(flags))
    return _equal(figure.ci[0], low) and _equal(figure.ci[1], high)


def _equal(told: float | None, found: float) -> bool:
    return told is not None and math.isclose(told, found, rel_tol=1e-9, abs_tol=1e-9)

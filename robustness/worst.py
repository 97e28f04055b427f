"""The worst case: for every sample the largest rank that any attack with one budget reached.

PyTorch model and served model are one function; where rounding parts them, the worse counts.
"""

import numpy as np

from robustness.attacks.base import Budget
from robustness.scoring import AttackResult, ModelResult
from robustness.spec import Cell, EvaluationSpec


def attacked(spec: EvaluationSpec, result: ModelResult) -> list[tuple[Cell, AttackResult]]:
    """The cells that are attacks, with their results, in the order of the spec."""
    pairs = zip(spec.cells, result.cells, strict=True)
    return [(cell, found) for cell, found in pairs if isinstance(found, AttackResult)]


def worst_cases(spec: EvaluationSpec, result: ModelResult) -> list[tuple[Budget, np.ndarray]]:
    """Each budget with the per-sample worst rank (N,) over all attacks that had it.

    Budgets ascend within their kind, kinds come in the order of the spec; `text` is as the spec
    spells it first.
    """
    places: dict[tuple[str, float], Budget] = {}
    ranks: dict[tuple[str, float], np.ndarray] = {}
    for cell, found in attacked(spec, result):
        place = cell.budget
        key = place.kind, place.value
        places.setdefault(key, place)
        ranks[key] = np.maximum(ranks.get(key, found.robust), _by_either(found))
    kinds = list(dict.fromkeys(kind for kind, _ in places))
    ordered = sorted(places, key=lambda key: (kinds.index(key[0]), key[1]))
    return [(places[key], ranks[key]) for key in ordered]


def worst_ranks(spec: EvaluationSpec, result: ModelResult) -> dict[str, np.ndarray]:
    """`worst_cases` by name: the point, or "L2:0.5", "edits:5" for kinds after the first."""
    return {place_name(spec, place): rank for place, rank in worst_cases(spec, result)}


def largest_rank(spec: EvaluationSpec, result: ModelResult) -> np.ndarray | None:
    """The worst rank (N,) over all attacks at the largest budget of each kind; None without any."""
    found = [(cell.budget, _by_either(one)) for cell, one in attacked(spec, result)]
    if not found:
        return None
    largest: dict[str, float] = {}
    for place, _ in found:
        largest[place.kind] = max(place.value, largest.get(place.kind, 0.0))
    return np.maximum.reduce([rank for place, rank in found if place.value == largest[place.kind]])


def _by_either(found: AttackResult) -> np.ndarray:
    return np.maximum(found.robust, found.confirmed)


def place_name(spec: EvaluationSpec, place: Budget) -> str:
    """The key of a budget in `worst_ranks`."""
    places = [cell.budget for cell in spec.cells if _has_budget(cell)]
    first = next(p.text for p in places if (p.kind, p.value) == (place.kind, place.value))
    return first if place.kind == places[0].kind else f"{place.kind}:{first}"


def _has_budget(cell: Cell) -> bool:
    return cell.attack.info.role == "attack"

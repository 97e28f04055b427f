"""What became of every sample, from results to flags."""

import math
from typing import Any

import numpy as np

from robustness.attacks.base import Variant
from robustness.attacks.corruptions.attack import split
from robustness.context import variants_of
from robustness.report import schema
from robustness.report.markup import plain
from robustness.report.summary import by_gradients, nearest
from robustness.scoring import AttackResult, CertificateResult, CorruptionResult, ModelResult
from robustness.spec import Cell, EvaluationSpec
from robustness.worst import attacked


def sample_flags(
    spec: EvaluationSpec, results: list[ModelResult], names: list[str], labels: np.ndarray | None
) -> list[schema.Sample]:
    """The flags of every sample, with one entry per model.

    Args:
        spec: what was asked for.
        results: what was found, model by model.
        names: names of the samples; what no text may hold is replaced.
        labels: (N,), or None where none were given.
    """
    by_model = [_model_flags(spec, result) for result in results]
    return [
        schema.Sample(
            index=i,
            name=plain(name),
            label=None if labels is None else int(labels[i]),
            models=[found[i] for found in by_model],
        )
        for i, name in enumerate(names)
    ]


def _model_flags(spec: EvaluationSpec, result: ModelResult) -> list[schema.ModelFlags]:
    clean = result.clean
    attacks = [_attack_flags(result, cell, one) for cell, one in attacked(spec, result)]
    corruptions, certificates = _corruption_flags(spec, result), _certificates(spec, result)
    minimal = nearest(spec, result)
    return [
        schema.ModelFlags(
            name=result.target.name,
            clean=schema.CleanFlags(
                index=int(clean.index[i]),
                probability=_finite(clean.probability[i]),
                correct=bool(clean.rank[i] == 0),
            ),
            attacks=[found[i] for found in attacks],
            corruptions=[found[i] for found in corruptions],
            certificates=[found[i] for found in certificates],
            minimal={norm: _finite(distance[i]) for norm, distance in minimal.items()},
        )
        for i in range(len(clean.rank))
    ]


def _attack_flags(result: ModelResult, cell: Cell, found: AttackResult) -> list[schema.AttackFlags]:
    made_by = _parts(result, cell)
    attack, on_texts = cell.attack, cell.attack.info.input == "text"
    shared: dict[str, Any] = {
        "name": attack.label,
        "norm": attack.norm_name,
        "eps": cell.budget.text,
        "eps_value": cell.budget.value,
    }
    ways = by_gradients(found)
    return [
        schema.AttackFlags(
            **shared,
            part=made_by[int(found.worst[i])][0],
            variant=made_by[int(found.worst[i])][1],
            adversarial_index=int(found.index[i]),
            margin=_finite(found.margin[i]),
            distance=float(found.distance[i]),
            robust=bool(found.robust[i] == 0),
            confirmed=bool(found.confirmed[i] == 0),
            confirmed_8bit=None if on_texts else bool(found.confirmed_8bit[i] == 0),
            gradients={way: bool(row[i] == 0) for way, row in ways.items()} or None,
        )
        for i in range(len(found.robust))
    ]


def _parts(result: ModelResult, cell: Cell) -> list[tuple[str, Variant]]:
    """What `AttackResult.worst` counts: the parts of an attack and their gradients."""
    target = result.target
    return [
        (part.label, variant)
        for part in cell.attack.parts(len(target.labels))
        for variant in variants_of(target, part)
    ]


def _corruption_flags(
    spec: EvaluationSpec, result: ModelResult
) -> list[list[schema.CorruptionFlags]]:
    found = []
    for cell, one in zip(spec.cells, result.cells, strict=True):
        if isinstance(one, CorruptionResult):
            name, severity = split(cell.budget)
            rows = [
                schema.CorruptionFlags(
                    name=name, severity=severity, index=int(index), correct=bool(rank == 0)
                )
                for index, rank in zip(one.index, one.rank, strict=True)
            ]
            found.append(rows)
    return found


def _certificates(spec: EvaluationSpec, result: ModelResult) -> list[list[schema.CertificateFlags]]:
    label = result.clean.label
    return [
        [
            schema.CertificateFlags(
                sigma=cell.budget.text,
                index=None if one.index[i] < 0 else int(one.index[i]),
                radius=float(one.radius[i]),
                correct=bool(one.index[i] == label[i]),
            )
            for i in range(len(label))
        ]
        for cell, one in zip(spec.cells, result.cells, strict=True)
        if isinstance(one, CertificateResult)
    ]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None

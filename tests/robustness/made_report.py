"""Made-up results, and reports about them with the shards that they speak of: no model is asked."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from data.sets import Origin
from robustness import store as shards
from robustness.attacking import cell_shards
from robustness.kinds import Variant
from robustness.report.build import build_report
from robustness.report.schema import Report, write_report
from robustness.results import (
    CertificateResult,
    CleanResult,
    CorruptionResult,
    Diagnostics,
    ModelResult,
    Scoring,
    ShardResult,
    parts_of,
)
from robustness.sanity.measure import unmeasured
from robustness.scoring import combine
from robustness.spec import Cell, EvaluationSpec
from robustness.target import Target
from tests.robustness.conftest import image_target

ATTACKS: list[dict[str, Any]] = [
    {"name": "fgsm", "eps": ["2/255", "8/255"]},
    {"name": "autoattack", "eps": ["2/255", "4/255", "8/255"]},
    {"name": "square", "eps": ["0.5"], "norm": "L2"},
    {"name": "fab-t", "eps": ["4/255"]},
    {"name": "corruptions", "names": ["fog", "gaussian_noise"]},
    {"name": "smoothing", "sigma": ["0.25", "0.5"]},
]
PGD = EvaluationSpec.model_validate({"attacks": [{"name": "pgd", "eps": ["4/255"]}]})


def made_clean(label: np.ndarray, **changes: np.ndarray) -> CleanResult:
    """Inputs that a made-up model gets right without any attack."""
    no = np.zeros(len(label), bool)
    right = CleanResult(
        label=label, rank=label * 0, index=label, probability=np.full(len(label), 0.5),
        torch_index=label, finite=~no, blind=no, normalised=no, unsteady=no,
    )  # fmt: skip
    return replace(right, **changes)


def made_scoring(rank: np.ndarray, **changes: np.ndarray) -> Scoring:
    """The same ranks by all who score."""
    scored = Scoring(
        torch_rank=rank, served_rank=rank, eight_bit_rank=rank, index=rank,
        probability=np.full(len(rank), 0.7), margin=0.5 - rank,
        distance=rank * 0.0, finite=np.ones(len(rank), bool),
    )  # fmt: skip
    return replace(scored, **changes)


def made_result(
    target: Target, clean: CleanResult, *cells: ShardResult, spec: EvaluationSpec = PGD
) -> ModelResult:
    """Results of a model that was not asked about itself."""
    return ModelResult(
        spec=spec, target=target, clean=clean, cells=[*cells], inputs_digest="0" * 64,
        diagnostics=Diagnostics(**unmeasured(len(clean.label))),
    )  # fmt: skip


def make_report(
    folder: Path,
    samples: int = 48,
    *,
    channels: int = 1,
    side: int = 8,
    labelled: bool = True,
    classes: Sequence[str] = ("a", "b", "c", "d"),
    names: Sequence[str] | None = None,
    models: Sequence[str] = ("one",),
    source: str = "made.zip",
    **spec: Any,
) -> Report:
    """Make up results on images of noise, write their shards and `report.json`."""
    asked = EvaluationSpec.model_validate({"attacks": ATTACKS, **spec})
    draw = np.random.default_rng(0)
    noise = np.random.default_rng(1)
    pixels = noise.random((samples, channels, side, side), dtype=np.float32)
    labels = np.arange(samples) % len(classes) if labelled else None
    results = []
    for position, name in enumerate(models):
        target = replace(
            image_target(nn.Identity(), channels=channels, side=side),
            name=name, digest=f"{position:064x}", labels=list(classes), torch_model=None,
        )  # fmt: skip
        results.append(_result(asked, target, samples, labels, draw))
        _store(folder, results[-1], pixels, draw)
    named = list(names or (f"{i}.png" for i in range(samples)))
    own = list(classes) if labelled else None
    origin = Origin(name="made", split="test", source=source, classes=own)
    report = build_report(results, named, labels, {"python": "3"}, origin, given=len(named))
    write_report(folder, report)
    return report


def _result(
    spec: EvaluationSpec,
    target: Target,
    samples: int,
    labels: np.ndarray | None,
    draw: np.random.Generator,
) -> ModelResult:
    num_classes = len(target.labels)
    drawn = draw.integers(0, num_classes, samples)
    label = drawn if labels is None else labels
    wrong = (draw.random(samples) > (0.9 if labels is not None else 1)).astype(np.int64)
    index = (label + wrong) % num_classes
    clean = made_clean(
        label, rank=wrong, index=index, torch_index=index, probability=draw.random(samples)
    )
    strength = draw.random(samples)  # how much it takes to mislead the model on a sample
    cells = [_cell(cell, target, clean, strength) for cell in spec.cells]
    return made_result(target, clean, *cells, spec=spec)


def _cell(cell: Cell, target: Target, clean: CleanResult, strength: np.ndarray) -> ShardResult:
    if cell.attack.name == "smoothing":
        silent = strength < 0.2
        index = np.where(silent, -1, clean.index)
        return CertificateResult(index=index, radius=np.where(silent, 0, strength))
    factor = {"corruptions": 0.1, "square": 1.0, "fgsm": 12.5}.get(cell.attack.name, 25.0)
    reach = factor * cell.budget.value
    rank = np.maximum(clean.rank, strength < reach)
    index = (clean.label + (rank > 0)) % len(target.labels)
    if cell.attack.info.role == "corruption":
        return CorruptionResult(rank=rank, index=index)
    scored = made_scoring(
        rank, eight_bit_rank=np.where(strength < 0.8 * reach, rank, 0), index=index,
        margin=strength - reach, distance=np.full(len(rank), cell.budget.value),
    )  # fmt: skip
    variants: list[Variant] = [variant for _, variant in parts_of(target, cell.attack)]
    nearest = np.where(strength < 0.8, strength / 25, np.inf) if cell.attack.info.minimal else None
    return combine(clean, [scored] * len(variants), variants, nearest)


def _store(
    folder: Path, result: ModelResult, pixels: np.ndarray, draw: np.random.Generator
) -> None:
    target = result.target
    for chosen in shards.ranges(len(pixels)):
        clean = pixels[chosen.start : chosen.stop]
        path = shards.clean_path(folder, target.digest, chosen.start)
        shards.write(path, {"clean": clean}, {})
        for cell in (cell for cell in result.spec.cells if cell.attack.info.norms):
            eps = cell.budget.value
            size = eps if cell.budget.kind == "Linf" else eps / target.diagonal
            signs = draw.choice(np.array([-size, size], np.float32), clean.shape)
            tensors = {"adversarial": np.clip(clean + signs, 0, 1).astype(np.float32)}
            if cell.attack.info.minimal:
                tensors["nearest"] = np.full(len(clean), eps)
            for shard in cell_shards(target, chosen.start, cell):
                shards.write(shard.path(folder), tensors, {})

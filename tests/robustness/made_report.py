"""Reports about made-up results, with the shards that they speak of: no model is asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.images import ImageSpec
from robustness import store as shards
from robustness.attacks.base import Attack
from robustness.report.build import build_report
from robustness.report.schema import Report, write_report
from robustness.scoring import (
    AttackResult,
    CertificateResult,
    CleanResult,
    CorruptionResult,
    ModelResult,
    ShardResult,
)
from robustness.spec import Cell, EvaluationSpec
from robustness.store import Shard
from robustness.target import ImageTarget, Target
from tests.robustness.conftest import MatmulRuntime

ATTACKS: list[dict[str, Any]] = [
    {"name": "fgsm", "eps": ["2/255", "8/255"]},
    {"name": "autoattack", "eps": ["2/255", "4/255", "8/255"]},
    {"name": "square", "eps": ["0.5"], "norm": "L2"},
    {"name": "fab-t", "eps": ["4/255"]},
    {"name": "corruptions", "names": ["fog", "gaussian_noise"]},
    {"name": "smoothing", "sigma": ["0.25", "0.5"]},
]


def make_report(
    folder: Path,
    *,
    pixels: np.ndarray,
    labels: np.ndarray | None,
    classes: Sequence[str],
    names: Sequence[str] | None = None,
    models: Sequence[str] = ("one",),
    digests: Sequence[str] | None = None,
    **spec: Any,
) -> Report:
    """Make up results on images, write their shards and `report.json`.

    Args:
        folder: of the evaluation.
        pixels: (N, C, H, W) float32 in [0, 1].
        labels: (N,) or None.
        classes: names of the classes.
        names: of the images.
        models: names of the models.
        digests: of the models, made up when not given.
        spec: fields of the spec; `ATTACKS` when it names none.
    """
    asked = EvaluationSpec.model_validate({"attacks": ATTACKS, **spec})
    draw = np.random.default_rng(0)
    known = digests or [f"{position:064x}" for position in range(len(models))]
    results = []
    for name, digest in zip(models, known, strict=True):
        target = _target(name, digest, pixels, classes)
        results.append(_result(asked, target, len(pixels), labels, draw))
        _store(folder, asked, results[-1], pixels, draw)
    named = list(names or (f"{i}.png" for i in range(len(pixels))))
    report = build_report(asked, results, named, labels, {"python": "3"})
    write_report(folder, report)
    return report


def _target(name: str, digest: str, pixels: np.ndarray, classes: Sequence[str]) -> Target:
    _, channels, height, width = pixels.shape
    return ImageTarget(
        name=name,
        version="1",
        digest=digest,
        labels=list(classes),
        image_spec=ImageSpec(channels=channels, height=height, width=width),
        runtime=MatmulRuntime(np.zeros((1, 1)), np.zeros(1)),
        torch_model=None,
    )


def _result(
    spec: EvaluationSpec,
    target: Target,
    samples: int,
    labels: np.ndarray | None,
    draw: np.random.Generator,
) -> ModelResult:
    num_classes = len(target.labels)
    index = draw.integers(0, num_classes, samples)
    label = index.copy() if labels is None else labels
    right = draw.random(samples) < (0.9 if labels is not None else 1)
    index = np.where(right, label, (label + 1) % num_classes)
    yes = np.ones(samples, bool)
    clean = CleanResult(
        label=label,
        rank=np.where(right, 0, 1),
        index=index,
        probability=draw.random(samples),
        torch_index=index,
        finite=yes,
        blind=~yes,
        normalised=~yes,
        unsteady=~yes,
    )
    strength = draw.random(samples)  # how much it takes to mislead the model on a sample
    cells = [_cell(cell, clean, strength, num_classes) for cell in spec.cells]
    return ModelResult(target=target, clean=clean, cells=cells, inputs_digest="0" * 64)


def _cell(cell: Cell, clean: CleanResult, strength: np.ndarray, num_classes: int) -> ShardResult:
    other = (clean.label + 1) % num_classes
    if cell.attack.name == "corruptions":
        rank = np.maximum(clean.rank, strength < 0.1 * cell.budget.value).astype(np.int64)
        return CorruptionResult(rank=rank, index=np.where(rank == 0, clean.label, other))
    if cell.attack.name == "smoothing":
        silent = strength < 0.2
        index = np.where(silent, -1, clean.index)
        return CertificateResult(index=index, radius=np.where(silent, 0, strength))
    eps = cell.budget.value
    share = eps if cell.budget.kind == "L2" else eps * 25
    weak = 0.5 if cell.attack.name == "fgsm" else 1.0
    rank = np.maximum(clean.rank, strength < weak * share).astype(np.int64)
    looks = cell.attack.name == "fab-t"
    return AttackResult(
        robust=rank,
        confirmed=rank,
        confirmed_8bit=np.where(strength < weak * share * 0.8, rank, clean.rank),
        by_part=np.tile(rank, (len(cell.attack.parts(num_classes)), 1)),
        by_variant=rank[None],
        worst=np.zeros(len(rank), np.int64),
        index=np.where(rank == 0, clean.label, other),
        margin=strength - weak * share,
        distance=np.full(len(rank), eps),
        nearest=np.where(strength < 0.8, strength / 25, np.inf) if looks else rank + np.inf,
        finite=np.ones(len(rank), bool),
    )


def _store(
    folder: Path,
    spec: EvaluationSpec,
    result: ModelResult,
    pixels: np.ndarray,
    draw: np.random.Generator,
) -> None:
    target = result.target
    assert isinstance(target, ImageTarget)
    for chosen in shards.ranges(len(pixels)):
        clean = pixels[chosen.start : chosen.stop]
        path = shards.clean_path(folder, target.digest, chosen.start)
        shards.write(path, {"clean": clean}, {})
        for cell in spec.cells:
            if not cell.attack.info.norms:
                continue
            tensors = _changed(clean, cell, draw)
            for part in cell.attack.parts(len(target.labels)):
                path = _path(folder, target, cell, part, chosen.start)
                shards.write(path, tensors, {})


def _changed(clean: np.ndarray, cell: Cell, draw: np.random.Generator) -> dict[str, np.ndarray]:
    eps = cell.budget.value
    size = eps if cell.budget.kind == "Linf" else eps / np.sqrt(clean[0].size)
    signs = draw.choice(np.array([-size, size], np.float32), clean.shape)
    changed = np.clip(clean + signs, 0, 1).astype(np.float32)
    if cell.attack.name == "fab-t":
        return {"adversarial": changed, "nearest": np.full(len(clean), eps)}
    return {"adversarial": changed}


def _path(folder: Path, target: Target, cell: Cell, part: Attack, start: int) -> Path:
    shard = Shard(
        model=target.digest,
        attack=cell.attack.name,
        part=part,
        budget=part.searched(cell.budget),
        variant=target.variants[0] if part.info.access == "gradient" else "plain",
        start=start,
    )
    return shard.path(folder)

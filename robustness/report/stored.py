"""Inputs that an evaluation left in its folder: as they were, and as an attack made them."""

from pathlib import Path

import numpy as np

from robustness.catalog import AttackName, Variant
from robustness.report.flags import AttackFlags
from robustness.spec import Cell, EvaluationSpec
from robustness.store import SHARD_SIZE, Shard, as_texts, clean_path, read, shard_point


class InputLost(ValueError):
    """The stored inputs are missing or damaged."""


def clean_input(folder: Path, digest: str, index: int) -> np.ndarray | str:
    """An input as it was judged: (C, H, W) float32 in [0, 1], or a text.

    Args:
        folder: of the evaluation.
        digest: of the model.
        index: of the sample.

    Raises:
        InputLost: its file is missing or damaged.
    """
    return _row(_tensors(clean_path(folder, digest, _start(index))), "clean", index)


def adversarial_input(
    folder: Path, digest: str, index: int, *, cell: Cell, part: AttackName, variant: Variant
) -> np.ndarray | str:
    """An input as an attack left it, for a sample and cell of a report.

    Args:
        folder: of the evaluation.
        digest: of the model.
        index: of the sample.
        cell: the attack and its point.
        part: the attack that made it, one of AutoAttack's four or the attack itself.
        variant: its gradients.

    Raises:
        InputLost: its file is missing or damaged.
    """
    made_by = next(p for p in cell.attack.components(num_classes=1000) if p.name == part)
    shard = Shard(
        model=digest,
        attack=cell.attack.name,
        part=made_by,
        point=shard_point(cell),
        variant=variant,
        start=_start(index),
    )
    tensors = _tensors(shard.path(folder))
    for name in ("adversarial", "texts"):
        if name in tensors:
            return _row(tensors, name, index)
    # One run of a minimum-norm attack serves every radius: what lies outside is not used.
    if tensors["nearest"][index % SHARD_SIZE] > made_by.radius(cell.point):
        return clean_input(folder, digest, index)
    return _row(tensors, "minimal", index)


def cell_of(spec: EvaluationSpec, flags: AttackFlags) -> Cell:
    """The cell of a spec that a sample's flags speak of."""
    return next(
        cell
        for cell in spec.cells
        if cell.attack.name == flags.name
        and cell.point == flags.eps
        and (flags.norm is None or cell.attack.ball == flags.norm)
    )


def _start(index: int) -> int:
    return index - index % SHARD_SIZE


def _tensors(path: Path) -> dict[str, np.ndarray]:
    tensors = read(path)
    if tensors is None:
        raise InputLost("the stored inputs of this sample are missing or damaged")
    return tensors


def _row(tensors: dict[str, np.ndarray], name: str, index: int) -> np.ndarray | str:
    stored = tensors[name]
    return as_texts(stored)[index % SHARD_SIZE] if stored.ndim == 1 else stored[index % SHARD_SIZE]

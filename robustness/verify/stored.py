"""The verdicts that a report was made of, as the files beside it have them."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

import numpy as np

from robustness import store as shards
from robustness.chunks import KINDS
from robustness.report.schema import Report
from robustness.sanity.findings import Probe
from robustness.scoring import CellVerdict, CleanVerdict, ModelVerdict, join
from robustness.target import Target
from robustness.verify.outcome import Refuted

T = TypeVar("T", CleanVerdict, Probe, CellVerdict)


def stored_verdict(folder: Path, report: Report, target: Target) -> ModelVerdict:
    """One model's verdict, whoever made its files: they are compared with what the model says.

    Raises:
        Refuted: a file is missing, damaged, or speaks of another number of samples.
    """
    starts = [chosen.start for chosen in shards.ranges(len(report.samples))]
    clean_paths = [shards.clean_path(folder, target.digest, start) for start in starts]
    cells: list[CellVerdict] = []
    for cell in report.spec.cells:
        kind = KINDS[cell.attack.info.role]
        paths = [shards.verdict_path(folder, target.digest, cell, start) for start in starts]
        cells.append(join([_read(path, kind) for path in paths]))
    verdict = ModelVerdict(
        target=target,
        clean=join([_read(path, CleanVerdict) for path in clean_paths]),
        cells=cells,
        inputs_digest="",
        probe=_read(shards.probe_path(folder, target.digest), Probe),
    )
    if any(size != len(report.samples) for size in _sizes(verdict)):
        raise Refuted(f"the verdicts on {target.name} speak of another number of inputs")
    return verdict


def _read(path: Path, kind: type[T]) -> T:
    stored = shards.read(path)
    names = [field.name for field in fields(kind)]
    if stored is None or not set(names) <= set(stored):
        raise Refuted(f"{path.name} is missing or damaged")
    return kind(**{name: stored[name] for name in names})


def _sizes(verdict: ModelVerdict) -> Iterator[int]:
    for part in (verdict.clean, *verdict.cells):
        for field in fields(part):
            yield np.shape(getattr(part, field.name))[-1]

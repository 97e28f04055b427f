"""What a benchmark says: one row a figure, in the fields that every reader relies on."""

import math
import os
import platform
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

from core.environment import installed, processor
from runtimes.threads import available_cores

_PROJECT = Path(__file__).parents[2] / "pyproject.toml"
_VERSIONS = ("torch", "onnxruntime", "onnxruntime-gpu", "openvino", "onnx", "numpy", "bentoml")


def machine() -> str:
    """The processor and the cores that this process may use."""
    return f"{processor()}, {available_cores()} of {os.cpu_count()} cores"


def versions() -> dict[str, str]:
    """Versions of Assay, Python and the packages that matter for speed."""
    own = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"]
    return {"assay": own, "python": platform.python_version()} | installed(_VERSIONS)


@dataclass(slots=True, kw_only=True)
class Row:
    """One measured figure.

    Attributes:
        name: the benchmark; `python -m benchmarks` fills it in.
        case: what exactly was measured.
        measured: the figure.
        unit: its unit.
        better: which direction is better.
        target: what it should reach, if there is a target.
        met: whether it does.
        samples: how many measurements it rests on.
        spread: the interval that the figure lies in, in the same unit.
    """

    name: str = ""
    case: str
    measured: float
    unit: str
    better: Literal["lower", "higher"]
    target: float | None
    met: bool | None
    samples: int
    spread: Sequence[float]
    machine: str = field(default_factory=machine)
    versions: dict[str, str] = field(default_factory=versions)


def figure(
    case: str,
    values: float | Sequence[float],
    unit: str,
    *,
    target: float | None = None,
    better: Literal["lower", "higher"] = "lower",
    samples: int | None = None,
    spread: Sequence[float] | None = None,
) -> Row:
    """A row about the median of some measurements, compared with its target.

    Args:
        case: what exactly was measured.
        values: one measurement, or several.
        unit: their unit.
        target: what the median should reach, if there is a target.
        better: which direction is better.
        samples: how many measurements it rests on; None: so many values.
        spread: of the figure; None: the interval of the median.
    """
    several = values if isinstance(values, Sequence) else [values]
    measured = round(median(several), 4)
    low, high = spread or median_interval(several)
    met = None
    if target is not None:
        met = measured <= target if better == "lower" else measured >= target
    return Row(
        case=case,
        measured=measured,
        unit=unit,
        better=better,
        target=target,
        met=met,
        samples=len(several) if samples is None else samples,
        spread=(round(low, 4), round(high, 4)),
    )


def skipped(case: str, reason: str) -> Row:
    """A row that says why something was not measured."""
    return Row(
        case=f"{case}, skipped: {reason}",
        measured=0,
        unit="figures",
        better="higher",
        target=None,
        met=None,
        samples=0,
        spread=(0, 0),
    )


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Interval of the median at about 95 %: order statistics, from the normal approximation."""
    ordered, half = sorted(values), 0.98 * math.sqrt(len(values))
    low = max(0, math.floor(len(ordered) / 2 - half))
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + half))
    return ordered[low], ordered[high]

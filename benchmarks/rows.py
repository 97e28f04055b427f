"""What a benchmark says: one row a figure, in the fields that every reader relies on."""

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runtimes.threads import available_cores

_VERSIONS = ("torch", "onnxruntime", "openvino", "onnx", "numpy", "bentoml")


def machine() -> str:
    """The processor and the cores that this process may use."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.is_file() else ():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{model}, {available_cores()} of {os.cpu_count()} cores"


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter for speed."""
    found = {"python": platform.python_version()}
    for name in _VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured figure.

    Attributes:
        name: the benchmark.
        case: what exactly was measured.
        measured: the figure.
        unit: its unit.
        better: which direction is better.
        target: what it should reach, if there is a target.
        samples: how many measurements it rests on.
        spread: low and high end of the measurements' spread, in the same unit.
    """

    name: str
    case: str
    measured: float
    unit: str
    better: Literal["lower", "higher"]
    target: float | None = None
    met: bool | None = field(init=False)
    samples: int
    spread: Sequence[float]
    machine: str = field(default_factory=machine)
    versions: dict[str, str] = field(default_factory=versions)

    def __post_init__(self) -> None:
        """Judge the figure by its target."""
        met = None
        if self.target is not None:
            below = self.measured <= self.target
            met = below if self.better == "lower" else self.measured >= self.target
        object.__setattr__(self, "met", met)

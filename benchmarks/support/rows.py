"""What a benchmark says: one row a figure, in the fields that every reader relies on."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from core.environment import installed, processor
from runtimes.threads import available_cores

_VERSIONS = ("torch", "onnxruntime", "openvino", "onnx", "numpy", "bentoml")


def machine() -> str:
    """The processor and the cores that this process may use."""
    return f"{processor()}, {available_cores()} of {os.cpu_count()} cores"


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter for speed."""
    return {"python": platform.python_version()} | installed(_VERSIONS)


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
        """Compare the figure with its target."""
        met = None
        if self.target is not None:
            below = self.measured <= self.target
            met = below if self.better == "lower" else self.measured >= self.target
        object.__setattr__(self, "met", met)

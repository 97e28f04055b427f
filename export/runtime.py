"""Open an artifact's graph on an engine; nothing here imports torch until it is asked for."""

from pathlib import Path
from typing import get_args

from export.select.settle import recalled, settle
from runtimes.artifact import Artifact
from runtimes.base import (
    Inputs,
    InvalidInputs,
    Mode,
    Runtime,
    RuntimeUnavailable,
    blank_inputs,
)
from runtimes.gate import ParityFailure, require_parity
from runtimes.onnx import METADATA_CONFIG, METADATA_WEIGHTS, open_session
from runtimes.registry import ENGINES, require_runtime
from runtimes.threads import available_cores

__all__ = [
    "METADATA_CONFIG",
    "METADATA_WEIGHTS",
    "Inputs",
    "InvalidInputs",
    "Mode",
    "ParityFailure",
    "Runtime",
    "RuntimeUnavailable",
    "blank_inputs",
    "open_runtime",
    "open_session",
    "recalled",
    "require_runtime",
    "settle",
]


def open_runtime(
    artifact: Artifact,
    *,
    name: str = "onnx-cpu",
    precision: Mode = "exact",
    threads: int | None = None,
    cache: Path | None = None,
) -> Runtime:
    """Open an artifact on an engine.

    Every opened graph is compared with the answers that the artifact stores, on the processor that
    runs it: in fp32 with the logits of a few inputs, below it with the classes of all of them.

    Args:
        artifact: a verified artifact.
        name: of an engine; "auto" is the fastest that passes the artifact's parity gate here.
        precision: "exact" is the artifact's own; "fast" the fastest that passes the gate.
        threads: threads of one prediction; None takes the cores that this process may use.
        cache: folder of earlier choices, and of what engines build; None measures every time.

    Raises:
        ValueError: unknown engine or precision, or fewer than one thread.
        RuntimeUnavailable: the engine is not installed, or cannot run this artifact here.
        ParityFailure: it computes something else than the artifact's model.
        ArtifactError: a file changed since it was verified, cannot be opened, or belongs to other
            weights or another config than the manifest's.
    """
    require_runtime(name)
    if precision not in get_args(Mode):
        raise ValueError(f"precision must be exact or fast, got {precision!r}")
    threads = available_cores() if threads is None else threads
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    engine, arithmetic = _decide(artifact, name, precision, threads, cache)
    runtime = ENGINES[engine].open(artifact, arithmetic, threads, cache)
    require_parity(runtime, artifact, quick=True)
    return runtime


def _decide(
    artifact: Artifact, name: str, mode: Mode, threads: int, cache: Path | None
) -> tuple[str, str]:
    """The engine and its arithmetic; measured only where there is something to choose or judge."""
    own = artifact.manifest.precision
    if name != "auto":
        able = ENGINES[name].precisions(artifact.manifest, mode)
        if not able:
            raise RuntimeUnavailable(f"runtime {name} does not run {own} here")
        # The export has judged its precision on ONNX Runtime, and stored logits judge fp32.
        if able == [own] and (own == "fp32" or name == "onnx-cpu"):
            return name, own
    [choice] = settle([artifact], name=name, mode=mode, threads=threads, cache=cache)
    return choice.runtime, choice.precision

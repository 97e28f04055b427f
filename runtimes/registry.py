"""Every runtime by the name that a user gives it, and the way to open an artifact on one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runtimes import onnx as onnx_runtime
from runtimes import openvino as openvino_runtime
from runtimes import torchscript as torchscript_runtime
from runtimes.artifact import Artifact
from runtimes.base import Mode, Runtime, RuntimeUnavailable
from runtimes.gate import require_parity
from runtimes.manifest import Manifest
from runtimes.threads import available_cores


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeKind:
    """How to use one runtime.

    Attributes:
        missing: why it cannot be used here, or None.
        precisions: in which precisions it can run a graph here, the preferred one first.
        open: opens an artifact in one of them, with a number of threads and a cache.
        runs_code: whether opening runs code of the artifact; then it is used only by its name, and
            `auto` leaves it out.
    """

    missing: Callable[[], str | None]
    precisions: Callable[[Manifest, Mode], list[str]]
    open: Callable[[Artifact, str, int, Path | None], Runtime]
    runs_code: bool = False


def _onnx(name: str) -> RuntimeKind:
    return RuntimeKind(
        missing=lambda: onnx_runtime.missing(name),
        precisions=lambda manifest, mode: onnx_runtime.precisions(name, manifest, mode),
        open=lambda artifact, precision, threads, cache: onnx_runtime.OnnxRuntime(
            artifact, name=name, precision=precision, threads=threads, cache=cache
        ),
    )


RUNTIMES: dict[str, RuntimeKind] = {
    "onnx-cpu": _onnx(onnx_runtime.CPU),
    "onnx-cuda": _onnx(onnx_runtime.CUDA),
    "onnx-tensorrt": _onnx(onnx_runtime.TENSORRT),
    "openvino": RuntimeKind(
        missing=openvino_runtime.missing,
        precisions=openvino_runtime.precisions,
        open=lambda artifact, precision, threads, cache: openvino_runtime.OpenVino(
            artifact, precision=precision, threads=threads, cache=cache
        ),
    ),
    "torchscript": RuntimeKind(
        missing=torchscript_runtime.missing,
        precisions=torchscript_runtime.precisions,
        open=lambda artifact, precision, threads, _: torchscript_runtime.TorchScript(
            artifact, precision=precision, threads=threads
        ),
        runs_code=True,
    ),
}


def installed() -> list[str]:
    """The runtimes that can be used here."""
    return [name for name, kind in RUNTIMES.items() if kind.missing() is None]


def candidates(name: str) -> list[str]:
    """The runtimes that a name stands for: itself, or for "auto" all that may be tried here."""
    if name != "auto":
        return [name]
    return [each for each in installed() if not RUNTIMES[each].runs_code]


def require_runtime(name: str) -> None:
    """Raise ValueError for an unknown runtime, RuntimeUnavailable for one that is not installed."""
    if name not in RUNTIMES:
        known = ", ".join(("auto", *RUNTIMES))
        raise ValueError(f"name must be one of {known}, got {name!r}")
    reason = RUNTIMES[name].missing()
    if reason is not None:
        here = ", ".join(installed())
        raise RuntimeUnavailable(f"runtime {name} is not available: {reason}; installed: {here}")


def open_runtime(
    artifact: Artifact,
    *,
    name: str = "onnx-cpu",
    precision: str | None = None,
    threads: int | None = None,
    cache: Path | None = None,
) -> Runtime:
    """Open an artifact on a runtime.

    Every opened graph is compared with the answers that the artifact stores, on the processor that
    runs it: in fp32 with the logits of a few inputs, below it with the classes of all of them.

    Args:
        artifact: a verified artifact.
        name: of a runtime.
        precision: arithmetic of the matrix products; None takes the artifact's own.
        threads: threads of one prediction; None takes the cores that this process may use.
        cache: folder of int8 forms, and of what runtimes build.

    Raises:
        ValueError: unknown runtime, or fewer than one thread.
        RuntimeUnavailable: the runtime is not installed, or cannot run this artifact here.
        ParityFailure: it computes something else than the artifact's model.
        ArtifactError: a file changed since it was verified, cannot be opened, or belongs to other
            weights or another config than the manifest's.
    """
    require_runtime(name)
    threads = available_cores() if threads is None else threads
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    own = artifact.manifest.precision
    if precision is None and own not in RUNTIMES[name].precisions(artifact.manifest, "exact"):
        raise RuntimeUnavailable(f"runtime {name} does not run {own} here")
    runtime = RUNTIMES[name].open(artifact, precision or own, threads, cache)
    require_parity(runtime, artifact, quick=True)
    return runtime

"""Every engine by the name that a user gives it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runtimes import onnx as onnx_runtime
from runtimes import openvino as openvino_runtime
from runtimes import torchscript as torchscript_runtime
from runtimes.artifact import Artifact
from runtimes.base import Mode, Runtime, RuntimeUnavailable
from runtimes.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How to use one engine.

    Attributes:
        missing: why it cannot be used here, or None.
        precisions: in which precisions it can run a graph here, the preferred one first.
        open: opens an artifact, in one of them.
    """

    missing: Callable[[], str | None]
    precisions: Callable[[Manifest, Mode], list[str]]
    open: Callable[[Artifact, str, int, Path | None], Runtime]


def _onnx(name: str) -> Engine:
    return Engine(
        missing=lambda: onnx_runtime.missing(name),
        precisions=lambda manifest, mode: onnx_runtime.precisions(name, manifest, mode),
        open=lambda artifact, precision, threads, cache: onnx_runtime.OnnxRuntime(
            artifact, name=name, precision=precision, threads=threads, cache=cache
        ),
    )


ENGINES: dict[str, Engine] = {
    "onnx-cpu": _onnx(onnx_runtime.CPU),
    "onnx-cuda": _onnx(onnx_runtime.CUDA),
    "onnx-tensorrt": _onnx(onnx_runtime.TENSORRT),
    "openvino": Engine(
        missing=openvino_runtime.missing,
        precisions=openvino_runtime.precisions,
        open=lambda artifact, precision, threads, cache: openvino_runtime.OpenVino(
            artifact, precision=precision, threads=threads, cache=cache
        ),
    ),
    "torchscript": Engine(
        missing=torchscript_runtime.missing,
        precisions=torchscript_runtime.precisions,
        open=lambda artifact, precision, threads, _: torchscript_runtime.TorchScript(
            artifact, precision=precision, threads=threads
        ),
    ),
}


def installed() -> list[str]:
    """The engines that can be used here."""
    return [name for name, engine in ENGINES.items() if engine.missing() is None]


def require_runtime(name: str) -> None:
    """Check a runtime's name, without opening anything.

    Args:
        name: of an engine, or "auto".

    Raises:
        ValueError: there is no such engine.
        RuntimeUnavailable: it is not installed here.
    """
    if name == "auto":
        return
    if name not in ENGINES:
        known = ", ".join(("auto", *ENGINES))
        raise ValueError(f"name must be one of {known}, got {name!r}")
    reason = ENGINES[name].missing()
    if reason is not None:
        here = ", ".join(installed())
        raise RuntimeUnavailable(f"runtime {name} is not there: {reason}; installed are {here}")

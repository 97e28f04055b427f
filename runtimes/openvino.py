"""OpenVINO on the CPU: the same ONNX file, compiled for this very processor.

Imported when it is asked for. Its package would report usage through `openvino-telemetry`, which
the locks leave out; nothing here calls the tools that would.
"""

import importlib.util
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runtimes.artifact import Artifact
from runtimes.base import Inputs, Mode, RuntimeUnavailable, as_feed, in_batches
from runtimes.manifest import Manifest
from runtimes.quantized import read_graph

if TYPE_CHECKING:
    import openvino

OPENVINO = "openvino"
_DEVICE = "CPU"
_HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "int8": "f32", "int8+bf16": "bf16"}
_CAPABILITIES = {"fp32": "FP32", "bf16": "BF16", "fp16": "FP16", "int8": "INT8"}
_FASTER = {"fp32": ["bf16", "fp16", "int8", "int8+bf16"], "int8": ["int8+bf16"]}


class OpenVino:
    """A model compiled by OpenVINO.

    Args:
        artifact: a verified artifact.
        precision: of the matrix products: "fp32", "bf16", "fp16", "int8", or "int8+bf16" where what
            int8 leaves is done in bf16.
        threads: threads of one prediction.
        cache: where int8 forms are.

    Raises:
        ArtifactError: the graph changed since it was verified.
        RuntimeUnavailable: OpenVINO cannot open it, or the processor has not this precision.
    """

    name = OPENVINO

    def __init__(
        self, artifact: Artifact, *, precision: str, threads: int, cache: Path | None
    ) -> None:
        self.precision = precision
        self._manifest = artifact.manifest
        content = read_graph(artifact, precision, cache)
        self._request = compile_graph(content, precision, threads).create_infer_request()
        self._lock = threading.Lock()

    def predict(self, inputs: Inputs) -> np.ndarray:
        """See `Runtime.predict`."""
        feed = as_feed(inputs, self._manifest)
        return in_batches(self._run, feed, self._manifest.batch)

    def _run(self, feed: dict[str, np.ndarray]) -> np.ndarray:
        with self._lock:  # a request holds the tensors of one prediction
            result = self._request.infer(feed, share_inputs=True)
            return np.array(result["logits"], dtype=np.float32, order="C")


def missing() -> str | None:
    """Why OpenVINO cannot be used, or None."""
    if importlib.util.find_spec("openvino") is None:
        return "the package openvino is not installed; install openvino (requirements/cpu.txt)"
    return None


def precisions(manifest: Manifest, mode: Mode) -> list[str]:
    """Precisions in which this processor can run a graph, the graph's own first."""
    own = manifest.precision
    as_it_is = mode == "exact" or manifest.source is not None
    wanted = [own] if as_it_is else [own, *_FASTER.get(own, [])]
    return [precision for precision in wanted if able_to_run(precision)]


def able_to_run(precision: str) -> bool:
    """Whether this processor has a precision such as "bf16" or "int8+bf16"."""
    able = _core().get_property(_DEVICE, "OPTIMIZATION_CAPABILITIES")
    return all(_CAPABILITIES[part] in able for part in precision.split("+"))


def _core() -> "openvino.Core":
    try:
        import openvino
    except ImportError as error:
        raise RuntimeUnavailable(f"the package openvino cannot be imported: {error}") from error
    return openvino.Core()


def compile_graph(content: bytes, precision: str, threads: int) -> "openvino.CompiledModel":
    """Compile the bytes of a graph.

    Args:
        content: an ONNX file.
        precision: of the matrix products; "int8" for a graph that is quantized.
        threads: threads of one prediction.

    Raises:
        RuntimeUnavailable: OpenVINO cannot open it, or the processor has not this precision.
    """
    core = _core()
    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
        # Pinned threads of two processes would share one core while others are idle.
        "ENABLE_CPU_PINNING": False,
    }
    try:
        compiled = core.compile_model(core.read_model(content), _DEVICE, settings)
    except Exception as error:  # it raises bare RuntimeErrors
        raise RuntimeUnavailable(f"OpenVINO cannot open the graph: {error}") from error
    used = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if used != _HINTS[precision]:
        raise RuntimeUnavailable(f"this processor runs {used} where {precision} was asked for")
    return compiled

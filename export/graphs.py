"""Open the bytes of a graph to measure it, in the arithmetic that it is meant for."""

from collections.abc import Callable

import numpy as np

from export.samples import Feed
from runtimes import onnx as onnx_runtime
from runtimes import openvino as openvino_runtime
from runtimes.artifact import ArtifactError
from runtimes.base import RuntimeUnavailable
from runtimes.machine import has_nvidia_gpu
from runtimes.manifest import ONNX, Precision
from runtimes.onnx import open_session
from runtimes.threads import available_cores

Outputs = dict[str, np.ndarray]


class Graph:
    """An opened graph, called with its inputs by name.

    Args:
        name: of the runtime.
        run: from inputs to all outputs of the graph.
    """

    def __init__(self, name: str, run: Callable[[Feed], Outputs]) -> None:
        self.name = name
        self._run = run

    def __call__(self, feed: Feed) -> np.ndarray:
        """The logits, (B, K) float32.

        Raises:
            ArtifactError: the graph has no such output, or does not run on these inputs.
        """
        outputs = self.outputs(feed)
        if "logits" not in outputs:
            raise ArtifactError(f"{ONNX} must have the output logits, got {', '.join(outputs)}")
        return outputs["logits"]

    def outputs(self, feed: Feed) -> Outputs:
        """Every output of the graph, by name, as float32.

        Raises:
            ArtifactError: the graph does not run on these inputs.
        """
        try:
            return {name: np.asarray(value, np.float32) for name, value in self._run(feed).items()}
        except Exception as error:  # the exceptions of the runtimes share no public base class
            raise ArtifactError(f"{ONNX} must run on {_shapes(feed)}, got {error}") from error


def open_graph(content: bytes, precision: Precision) -> Graph:
    """Open a graph on a runtime that executes its precision, and does not only read it.

    Args:
        content: an ONNX file.
        precision: arithmetic of the graph.

    Raises:
        ValueError: there is no such runtime here.
        ArtifactError: the graph cannot be opened.
    """
    if precision != "bf16":
        return _onnx(content, onnx_runtime.CPU)
    require_precision(precision)
    if _has_cuda():
        return _onnx(content, onnx_runtime.CUDA)
    return _openvino(content, precision)


def require_precision(precision: Precision) -> None:
    """Refuse a precision that nothing here executes, before a graph is made for it.

    Raises:
        ValueError: there is no such runtime here.
    """
    if precision != "bf16" or _has_cuda():
        return
    reason = openvino_runtime.missing()
    if reason is None and not openvino_runtime.able_to_run(precision):
        reason = f"this processor does not run {precision}"
    if reason is not None:
        raise ValueError(_refusal(precision, reason))


def _has_cuda() -> bool:
    return has_nvidia_gpu() and onnx_runtime.missing(onnx_runtime.CUDA) is None


def _onnx(content: bytes, name: str) -> Graph:
    providers = None
    if name == onnx_runtime.CUDA:
        providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    session = open_session(content, threads=available_cores(), providers=providers)
    names = [value.name for value in session.get_outputs()]

    def run(feed: Feed) -> Outputs:
        return dict(zip(names, map(np.asarray, session.run(names, feed)), strict=True))

    return Graph(name, run)


def _openvino(content: bytes, precision: Precision) -> Graph:
    try:
        compiled = openvino_runtime.compile_graph(content, precision, available_cores())
    except RuntimeUnavailable as error:
        raise ValueError(_refusal(precision, str(error))) from error
    request = compiled.create_infer_request()
    names = [output.any_name for output in compiled.outputs]

    def run(feed: Feed) -> Outputs:
        result = request.infer(feed)
        return {name: np.array(result[name]) for name in names}

    return Graph(openvino_runtime.OPENVINO, run)


def _shapes(feed: Feed) -> str:
    return ", ".join(f"{name} {values.shape} {values.dtype}" for name, values in feed.items())


def _refusal(precision: Precision, reason: str) -> str:
    return f"{precision} is measured on a runtime that executes it (OpenVINO, CUDA): {reason}"

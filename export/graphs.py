"""Open the bytes of a graph to measure it, and its layers, in the arithmetic it is meant for."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import torch
from torch import nn

from export.plain import Watched
from export.samples import Feed
from runtimes import onnx as onnx_runtime
from runtimes import openvino as openvino_runtime
from runtimes.artifact import ArtifactError
from runtimes.base import RuntimeUnavailable
from runtimes.manifest import ONNX, Precision
from runtimes.onnx import open_session
from runtimes.threads import available_cores

Outputs = dict[str, np.ndarray]


class Graph:
    """An opened graph on a named runtime, called with its inputs by name."""

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
    return onnx_runtime.missing(onnx_runtime.CUDA) is None


def _onnx(content: bytes, name: str) -> Graph:
    on_cuda = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    providers = on_cuda if name == onnx_runtime.CUDA else None
    session = open_session(content, threads=available_cores(), providers=providers)
    names = [value.name for value in session.get_outputs()]

    def run(feed: Feed) -> Outputs:
        """Every output of the session."""
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
        """Every output of the compiled model, copied."""
        result = request.infer(feed)
        return {name: np.array(result[name]) for name in names}

    return Graph(openvino_runtime.OPENVINO, run)


def _shapes(feed: Feed) -> str:
    return ", ".join(f"{name} {values.shape} {values.dtype}" for name, values in feed.items())


def _refusal(precision: Precision, reason: str) -> str:
    return f"{precision} is measured on a runtime that executes it (OpenVINO, CUDA): {reason}"


def expose(content: bytes, names: Sequence[str]) -> bytes:
    """Let a graph give some of its inner values after its logits.

    Args:
        content: an ONNX file.
        names: of the values, as `Watched` gives them.

    Raises:
        ValueError: the graph has no value of such a name.
    """
    graph = onnx.load_from_string(content)
    known = {name for node in graph.graph.node for name in node.output}
    for name in names:
        if name not in known:
            raise ValueError(f"names must be values of the graph, got {name!r}")
        # Without a type: runtimes infer it, and it depends on the precision.
        graph.graph.output.append(onnx.ValueInfoProto(name=name))
    return graph.SerializeToString()


def layer_errors(
    model: nn.Module, content: bytes, precision: Precision, feed: Feed
) -> dict[str, float]:
    """Compare what each layer gives in a graph and in the eager model.

    Args:
        model: the eager model.
        content: an ONNX file made of it by `to_onnx`.
        precision: arithmetic of the graph.
        feed: inputs.

    Returns:
        ||graph - model|| / ||model|| of the tokens that each layer gives, padding left out, by the
        names of the layers in their order, and last of the logits; infinite where the graph's
        values are not finite, or have another shape.
    """
    with torch.inference_mode():
        expected = Watched(model)(*(torch.from_numpy(values) for values in feed.values()))
    names = [name for name in expected if name != "logits"]
    given = open_graph(expose(content, names), precision).outputs(feed)
    mask = feed.get("mask")
    errors = {
        name: _relative(_real(given[name], mask), _real(expected[name].numpy(), mask))
        for name in names
    }
    return errors | {"logits": _relative(given["logits"], expected["logits"].numpy())}


def error_table(errors: dict[str, float]) -> str:
    """The errors as lines of text."""
    lines = (f"{name:10} {error:9.2e}" for name, error in errors.items())
    return "\n".join([f"{'layer':10} {'error':>9}", *lines])


def _real(values: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    # The class token that some models put before the others has no place in the mask.
    fits = mask is not None and values.shape[:2] == mask.shape
    return values[mask] if fits else values


def _relative(given: np.ndarray, expected: np.ndarray) -> float:
    if given.shape != expected.shape or not np.isfinite(given).all():
        return math.inf
    size = float(np.linalg.norm(expected.astype(np.float64)))
    return float(np.linalg.norm((given - expected).astype(np.float64))) / max(size, 1e-30)

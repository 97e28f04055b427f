"""The graphs that an import puts around the one that it imports."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from export.importers.base import Spec
from export.importers.input_file import InputFile
from export.importers.source import SourceGraph
from export.importers.text_graphs import tokens_before
from export.importers.text_input import TextInput
from runtimes.compose import inner_name

Scores = Literal["logits", "probabilities"]
TINY = 1e-37
"""Keeps the logarithm of a probability finite, and changes none that matters."""


class _Chain:
    """Nodes one behind the other, of which each reads what the one before gives."""

    def __init__(self, start: str, place: str) -> None:
        self.nodes: list[NodeProto] = []
        self.end, self._place = start, place

    def add(self, operator: str, *constants: np.ndarray, **attributes: Any) -> None:
        """Put a node at the end."""
        names = [self.end]
        for values in constants:
            names.append(f"assay/{self._place}/{len(self.nodes)}")
            tensor = numpy_helper.from_array(values)
            self.nodes.append(helper.make_node("Constant", [], [names[-1]], value=tensor))
        self.end = f"assay/{self._place}/{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [self.end], **attributes))

    def finish(self, name: str) -> list[NodeProto]:
        """The nodes, of which the last gives a value of this name."""
        self.nodes.append(helper.make_node("Identity", [self.end], [name]))
        return self.nodes


def graph_before(source: SourceGraph, spec: Spec) -> bytes:
    """From `images` (B, C, H, W) float32 in [0, 1], or tokens, to what a graph reads, as ONNX.

    Args:
        source: the graph.
        spec: its input file, complete.
    """
    if isinstance(spec, TextInput):
        return tokens_before(source.model, source.opset, spec, alone=source.batch == 1)
    chain = _Chain("images", "before")
    if spec.channels == "bgr":
        chain.add("Gather", np.array([2, 1, 0]), axis=1)
    for operator, values in normalization(spec):
        chain.add(operator, values)
    if source.dtype == "uint8":  # Round is younger than some graphs
        chain.add("Add", _single(0.5))
        chain.add("Floor")
    if spec.layout == "nhwc":
        chain.add("Transpose", perm=[0, 2, 3, 1])
    if source.dtype != "float32":
        chain.add("Cast", to=source.reads.type.tensor_type.elem_type)
    shape = [source.batch or "batch", *_sizes(spec)]
    given = inner_name(source.reads.name)
    return _model(source, chain.finish(given), ("images", shape), (given, None))


def normalization(spec: InputFile) -> list[tuple[str, np.ndarray]]:
    """What is done to pixels in [0, 1] one after the other: operators of ONNX with their values."""
    low, high = spec.range or (0.0, 1.0)
    steps = [("Mul", _single(high - low), high - low != 1), ("Add", _single(low), low != 0)]
    steps += [("Sub", _channels(spec.mean or [0]), bool(spec.mean))]
    steps += [("Div", _channels(spec.std or [1]), bool(spec.std))]
    return [(operator, values) for operator, values, wanted in steps if wanted]


def graph_after(
    source: SourceGraph, scores: Scores, classes: int, *, least: float | None = None
) -> bytes:
    """From what a graph gives to `logits` (B, K) float32, as ONNX.

    The logarithm of probabilities is a vector of logits: its softmax are these probabilities.

    Args:
        source: the graph.
        scores: what it gives.
        classes: how many scores.
        least: the smallest logit to give, if there is one.
    """
    given = inner_name(source.gives.name)
    chain = _Chain(given, "after")
    if source.gives.type.tensor_type.elem_type != TensorProto.FLOAT:
        chain.add("Cast", to=TensorProto.FLOAT)
    if scores == "probabilities":
        chain.add("Add", _single(TINY))
        chain.add("Log")
    if least is not None:
        chain.add("Max", _single(least))
    shape = [source.batch or "batch", classes]
    return _model(source, chain.finish("logits"), (given, None), ("logits", shape))


def _model(
    source: SourceGraph,
    nodes: Sequence[NodeProto],
    reads: tuple[str, Any],
    gives: tuple[str, Any],
) -> bytes:
    kinds = {
        inner_name(value.name): value.type.tensor_type.elem_type
        for value in (source.reads, source.gives)
    }
    values = [
        helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shape)
        for name, shape in (reads, gives)
    ]
    graph = helper.make_graph(list(nodes), "assay", [values[0]], [values[1]])
    model = ModelProto(ir_version=source.model.ir_version, producer_name="assay", graph=graph)
    model.opset_import.append(helper.make_opsetid("", source.opset))
    return model.SerializeToString()


def _sizes(spec: InputFile) -> list[int]:
    found = spec.spec()
    return [found.channels, found.height, found.width]


def _single(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def _channels(values: Sequence[float]) -> np.ndarray:
    return np.array(values, np.float32).reshape(1, -1, 1, 1)

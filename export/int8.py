"""Turn an fp32 graph into one of int8: products with constant weights in 8-bit integers.

Weights are rounded per output channel, symmetrically, to 7 bits, which every processor multiplies
exactly. What is multiplied with them is rounded to unsigned 8-bit integers: with one scale a
tensor, fixed by calibration ("static"), or with one scale a token that the token itself sets
("dynamic"), so that no answer depends on what else is in the batch. The rest stays fp32: the first
and the last layer and products of two computed tensors, which are little work in a transformer and
whose rounding costs the most answers; and the experts of TransJect, whose matrices lie in one
tensor of three axes or depend on the sample.
"""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from export.graphs import expose, open_graph
from export.onnx import check_graph
from export.samples import Samples

_WEIGHT_LEVELS = 64
"""Largest weight. x86 processors without VNNI add pairs of products u8 x s8 in a saturating int16:
255 * 64 + 255 * 64 fits, 255 * 127 + 255 * 127 of 8-bit weights does not."""
_BATCH = 16
_SMALLEST_SCALE = 1e-12
Bounds = tuple[float, float]


def quantize_dynamic(content: bytes) -> bytes:
    """Quantize a graph with scales that each token sets for itself.

    Args:
        content: an fp32 graph by `to_onnx`.

    Raises:
        ValueError: the graph has no product with constant weights.
    """
    return _rewrite(content, _Dynamic)


def quantize_static(
    content: bytes,
    calibration: Samples,
    on_progress: Callable[[int], object] = lambda done: None,
) -> bytes:
    """Quantize a graph with scales that hold every value that was seen in calibration.

    Args:
        content: an fp32 graph by `to_onnx`.
        calibration: real inputs of the model.
        on_progress: called with the number of inputs just used.

    Raises:
        ValueError: the graph has no product with constant weights, or there are no inputs.
    """
    graph = onnx.load_from_string(content)
    names = dict.fromkeys(node.input[0] for node in _products(graph.graph))
    bounds = _calibrate(content, list(names), calibration, on_progress)
    return _rewrite(content, lambda graph: _Static(graph, bounds))


def _calibrate(
    content: bytes, names: list[str], samples: Samples, on_progress: Callable[[int], object]
) -> dict[str, Bounds]:
    """The smallest and largest value of some tensors, 0 included."""
    if not len(samples):
        raise ValueError("calibration must have samples, got none")
    graph = open_graph(expose(content, names), "fp32")
    bounds = dict.fromkeys(names, (0.0, 0.0))
    for start in range(0, len(samples), _BATCH):
        indices = np.arange(start, min(start + _BATCH, len(samples)))
        given = graph.outputs(samples.feed(indices))
        for name, (low, high) in bounds.items():
            values = given[name]
            bounds[name] = min(low, float(values.min())), max(high, float(values.max()))
        on_progress(len(indices))
    return bounds


def _rewrite(content: bytes, rules: "Callable[[onnx.GraphProto], _Rules]") -> bytes:
    model = onnx.load_from_string(content)
    graph = model.graph
    products = {node.name for node in _products(graph)}
    if not products:
        raise ValueError("graph must have a product with constant weights to become int8")
    rewriter, nodes = rules(graph), []
    for node in graph.node:
        nodes += rewriter.product(node) if node.name in products else [node]
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [t for t in (*graph.initializer, *rewriter.constants.values()) if t.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    check_graph(model)
    return model.SerializeToString(deterministic=True)


def _products(graph: onnx.GraphProto) -> list[NodeProto]:
    """The matrix products whose second factor is constant; the head is a Gemm."""
    matrices = {tensor.name for tensor in graph.initializer if len(tensor.dims) == 2}
    return [n for n in graph.node if n.op_type == "MatMul" and n.input[1] in matrices]


class _Rules:
    """How to replace products; what two of them share is made once."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.constants: dict[str, TensorProto] = {}
        self.rounded: set[str] = set()

    def product(self, node: NodeProto) -> list[NodeProto]:
        """The nodes that take the place of a MatMul."""
        raise NotImplementedError

    def _once(self, name: str, make: Callable[[str], list[NodeProto]]) -> list[NodeProto]:
        """The nodes that round a value, where its first product needs them."""
        known = name in self.rounded
        self.rounded.add(name)
        return [] if known else make(name)

    def _constant(self, name: str, values: np.ndarray) -> str:
        self.constants.setdefault(name, numpy_helper.from_array(values, name))
        return name

    def _weight(self, name: str) -> tuple[str, str]:
        """The names of a matrix (K, M) as int8 and of the scales (M,) of its columns."""
        values = numpy_helper.to_array(self.tensors[name])
        largest = np.abs(values).max(0)
        scales = np.maximum(largest / _WEIGHT_LEVELS, _SMALLEST_SCALE).astype(np.float32)
        rounded = np.rint(values / scales).astype(np.int8)
        return self._constant(f"{name}|int8", rounded), self._constant(f"{name}|scale", scales)


class _Static(_Rules):
    """Both factors between QuantizeLinear and DequantizeLinear, which runtimes multiply as int8."""

    def __init__(self, graph: onnx.GraphProto, bounds: dict[str, Bounds]) -> None:
        super().__init__(graph)
        self.bounds = bounds

    def product(self, node: NodeProto) -> list[NodeProto]:
        """The MatMul, after what rounds its factors."""
        source, weight = node.input
        nodes = self._once(source, self._round) + self._once(weight, self._matrix)
        node.input[:] = [f"{source}|rounded", f"{weight}|rounded"]
        return [*nodes, node]

    def _round(self, source: str) -> list[NodeProto]:
        low, high = self.bounds[source]
        scale = max((high - low) / 255, _SMALLEST_SCALE)
        grid = [
            self._constant(f"{source}|scale", np.array(scale, np.float32)),
            self._constant(f"{source}|zero", np.array(round(-low / scale), np.uint8)),
        ]
        low_name, name = f"{source}|int8", f"{source}|rounded"
        return [
            helper.make_node("QuantizeLinear", [source, *grid], [low_name], low_name),
            helper.make_node("DequantizeLinear", [low_name, *grid], [name], name),
        ]

    def _matrix(self, weight: str) -> list[NodeProto]:
        rounded, scales = self._weight(weight)
        count, name = self.tensors[weight].dims[1], f"{weight}|rounded"
        grid = [rounded, scales, self._constant(f"{weight}|zero", np.zeros(count, np.int8))]
        return [helper.make_node("DequantizeLinear", grid, [name], name, axis=1)]


class _Dynamic(_Rules):
    """x = scale * (q - 128) with q = floor(x / scale + 128.5), one scale for every token."""

    def product(self, node: NodeProto) -> list[NodeProto]:
        """A product of integers, and the scales of its factors."""
        (source, weight), result = node.input, node.output[0]
        rounded, scales = self._weight(weight)
        zero = self._constant("zero|uint8", np.array(128, np.uint8))
        steps = [
            ("MatMulInteger", [f"{source}|int8", rounded, zero], f"{result}|int32"),
            ("Cast", [f"{result}|int32"], f"{result}|whole", TensorProto.FLOAT),
            # One scale after the other: ONNX Runtime would take their product for a single number.
            ("Mul", [f"{result}|whole", scales], f"{result}|scaled"),
            ("Mul", [f"{result}|scaled", f"{source}|scale"], result),
        ]
        return self._once(source, self._round) + [_node(*step) for step in steps]

    def _round(self, source: str) -> list[NodeProto]:
        last = self._constant("axis|last", np.array([-1], np.int64))
        least = self._constant("scale|least", np.array(_SMALLEST_SCALE, np.float32))
        levels = self._constant("levels|half", np.array(127, np.float32))
        centre = self._constant("levels|centre", np.array(128.5, np.float32))
        steps = [
            ("Abs", [source], f"{source}|abs"),
            ("ReduceMax", [f"{source}|abs", last], f"{source}|largest"),
            ("Div", [f"{source}|largest", levels], f"{source}|step"),
            ("Max", [f"{source}|step", least], f"{source}|scale"),
            ("Div", [source, f"{source}|scale"], f"{source}|whole"),
            ("Add", [f"{source}|whole", centre], f"{source}|shifted"),
            ("Cast", [f"{source}|shifted"], f"{source}|int8", TensorProto.UINT8),
        ]
        return [_node(*step) for step in steps]


def _node(kind: str, inputs: list[str], output: str, to: int | None = None) -> NodeProto:
    node = helper.make_node(kind, inputs, [output], f"{kind}_{output}")
    if to is not None:
        node.attribute.append(helper.make_attribute("to", to))
    return node

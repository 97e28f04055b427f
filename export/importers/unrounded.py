"""The function that an int8 graph rounds: the same weights, without the steps of rounding."""

from functools import cached_property

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
    shape_inference,
)

from export.importers.pairs import with_pairs

_LIMITS = {np.dtype(kind): np.iinfo(kind) for kind in (np.int8, np.uint8, np.int16, np.uint16)}


def without_rounding(model: ModelProto) -> None:
    """Fold quantized weights, and let what is rounded pass, within the limits of its integers.

    Pairs of QuantizeLinear and DequantizeLinear keep their clipping. Dynamic scales, which follow
    the input, clip nothing: their integers become the numbers that they are made of.

    Raises:
        ValueError: a scale is computed, so that it cannot be folded, or integers or an operator on
            them are not known.
    """
    with_pairs(model)
    graph = model.graph
    _dequantize_tables(graph)
    known = {tensor.name: tensor for tensor in graph.initializer}
    made: list[NodeProto] = []
    for node in graph.node:
        for name in node.output if node.op_type == "Constant" else ():
            value = next((each.t for each in node.attribute if each.name == "value"), None)
            if value is not None:
                known[name] = value
    arrays = _Arrays(known, model)
    for node in graph.node:
        made += _REPLACED.get(node.op_type, _kept)(node, arrays)
    graph.ClearField("node")
    graph.node.extend(made)
    graph.initializer.extend(arrays.folded)


def _dequantize_tables(graph: GraphProto) -> None:
    """Let rows be taken of a table of numbers, instead of integers that become numbers then."""
    taken = {node.output[0]: node for node in graph.node if node.op_type == "Gather"}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in taken:
            rows, whole = taken[node.input[0]], NodeProto()
            whole.CopyFrom(node)
            whole.input[0], whole.output[0] = rows.input[0], f"{node.output[0]}/table"
            rows.input[0], rows.output[0] = whole.output[0], node.output[0]
            node.CopyFrom(rows)
            rows.CopyFrom(whole)


class _Arrays:
    """Constants by name, and those that are made of them."""

    def __init__(self, known: dict[str, TensorProto], model: ModelProto) -> None:
        self._known, self._model = known, model
        self.folded: list[TensorProto] = []

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def get(self, node: NodeProto, place: int) -> np.ndarray:
        """The constant at a place of a node's inputs.

        Raises:
            ValueError: it is computed.
        """
        if node.input[place] not in self:
            raise ValueError(f"{node.op_type} must have constant weights, scales and zero points")
        return numpy_helper.to_array(self._known[node.input[place]])

    def find(self, node: NodeProto, place: int) -> np.ndarray | None:
        """The same; None where the node has no such input."""
        given = len(node.input) > place and node.input[place]
        return self.get(node, place) if given else None

    @cached_property
    def _ranks(self) -> dict[str, int]:
        graph = shape_inference.infer_shapes(self._model).graph
        return {
            value.name: len(value.type.tensor_type.shape.dim)
            for value in (*graph.input, *graph.value_info)
            if value.type.tensor_type.HasField("shape")
        }

    def rank(self, name: str) -> int:
        """How many axes a value of the graph has.

        Raises:
            ValueError: that is not known.
        """
        if name not in self._ranks:
            raise ValueError("activations with a scale for each channel must have known axes")
        return self._ranks[name]

    def fold(self, name: str, values: np.ndarray) -> None:
        """Add a constant."""
        tensor = numpy_helper.from_array(np.asarray(values, np.float32), name)
        self._known[name] = tensor
        self.folded.append(tensor)


def _kept(node: NodeProto, _arrays: _Arrays) -> list[NodeProto]:
    return [node]


def _quantize(node: NodeProto, arrays: _Arrays) -> list[NodeProto]:
    """Clip to what the integers can say."""
    scale, zero = arrays.get(node, 1), arrays.find(node, 2)
    zero = np.zeros(1, np.uint8) if zero is None else zero
    if zero.dtype not in _LIMITS:
        raise ValueError(f"integers must have 8 or 16 bit, got {zero.dtype}")
    shape = _along(node, scale, arrays.rank(node.input[0])) if scale.size > 1 else ()
    limits, names = _LIMITS[zero.dtype], [f"{node.output[0]}/{end}" for end in ("low", "high")]
    for name, end in zip(names, (limits.min, limits.max), strict=True):
        arrays.fold(name, ((end - zero.astype(np.float32)) * scale).reshape(shape))
    raised = f"{node.output[0]}/raised"
    return [
        helper.make_node("Max", [node.input[0], names[0]], [raised]),
        helper.make_node("Min", [raised, names[1]], [node.output[0]]),
    ]


def _dequantize(node: NodeProto, arrays: _Arrays) -> list[NodeProto]:
    """Fold weights; what was quantized in the graph never became integers."""
    if node.input[0] not in arrays or node.input[0] in {t.name for t in arrays.folded}:
        return [helper.make_node("Identity", [node.input[0]], [node.output[0]])]
    values, scale, zero = arrays.get(node, 0), arrays.get(node, 1), arrays.find(node, 2)
    shape = _along(node, scale, values.ndim)
    shift = 0 if zero is None else zero.astype(np.float32).reshape(shape)
    arrays.fold(node.output[0], (values.astype(np.float32) - shift) * scale.reshape(shape))
    return []


def _along(node: NodeProto, scale: np.ndarray, dims: int) -> tuple[int, ...]:
    """The shape of scales so that they broadcast along their axis."""
    if scale.size == 1:
        return ()
    axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
    return tuple(-1 if place == axis % dims else 1 for place in range(dims))


def _dynamic(node: NodeProto, arrays: _Arrays) -> list[NodeProto]:
    """Let numbers pass, as integers of scale 1."""
    values, scale, zero = node.output
    arrays.fold(scale, np.array(1))
    arrays.fold(zero, np.array(0))
    return [helper.make_node("Identity", [node.input[0]], [values])]


def _product(node: NodeProto, arrays: _Arrays) -> list[NodeProto]:
    """Multiply numbers instead of integers, their zero point folded."""
    weights, zero = arrays.get(node, 1), arrays.find(node, 3)
    shift = np.float32(0) if zero is None else zero.astype(np.float32)
    name = f"{node.output[0]}/weights"
    if node.op_type == "ConvInteger" and shift.size > 1:
        shift = shift.reshape(-1, 1, 1, 1)
    arrays.fold(name, weights.astype(np.float32) - shift)
    kept = NodeProto(op_type=node.op_type.removesuffix("Integer"), output=node.output)
    kept.input.extend([node.input[0], name])
    kept.attribute.extend(node.attribute)
    return [kept]


_REPLACED = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic,
    "MatMulInteger": _product,
    "ConvInteger": _product,
}

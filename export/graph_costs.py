"""What a graph is made of: operators, the work of its products, the types of its weights."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

_PRODUCTS = ("MatMul", "MatMulInteger", "Gemm", "Conv", "Einsum")
_SMALL = 100
_TYPES = {*TensorProto.DataType.values()} - {TensorProto.UNDEFINED}
_Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCost:
    """All nodes of one operator.

    `flops` are those of products for one sample, two for each multiplication with its addition.
    """

    name: str
    count: int
    flops: int


def operator_costs(content: bytes, *, length: int | None = None) -> list[OperatorCost]:
    """Count the operators of a graph and the work of its products for one sample.

    Args:
        content: an ONNX file.
        length: number of tokens of a text model; None for images.

    Returns:
        The operators, the most work first, then the most nodes.

    Raises:
        ValueError: the graph is empty or names no opset, does not pass the shape inference of onnx,
            or the shape of a product does not follow from those of the inputs.
    """
    graph = onnx.load_from_string(content)
    if not graph.graph.node:
        raise ValueError("graph must have nodes, got none")
    if not _opsets(graph):
        raise ValueError("graph must name its opset of the standard operators, got none")
    try:
        shapes = _shapes(graph, (1,) if length is None else (1, length))
    except Exception as error:  # onnx and its evaluator raise many kinds over an odd graph
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"graph must pass the shape inference of onnx, got {reason}") from error
    counts, flops = Counter(), Counter()
    for node in graph.graph.node:
        counts[node.op_type] += 1
        if node.op_type in _PRODUCTS:
            flops[node.op_type] += _flops(node, shapes)
    costs = [OperatorCost(name=name, count=counts[name], flops=flops[name]) for name in counts]
    return sorted(costs, key=lambda cost: (-cost.flops, -cost.count, cost.name))


def weight_types(content: bytes) -> dict[str, tuple[int, int]]:
    """Numbers and bytes of a graph's constants by their type, the largest share first.

    Raises:
        ValueError: a constant has no type, or one that onnx does not know.
    """
    numbers, sizes = Counter(), Counter()
    for tensor in onnx.load_from_string(content).graph.initializer:
        if tensor.data_type not in _TYPES:
            raise ValueError(f"{tensor.name} must have a type of onnx, got {tensor.data_type}")
        name = TensorProto.DataType.Name(tensor.data_type).lower()
        count = math.prod(tensor.dims)
        numbers[name] += count
        sizes[name] += count * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return {name: (numbers[name], size) for name, size in sizes.most_common()}


def _shapes(graph: onnx.ModelProto, leading: Sequence[int]) -> _Shapes:
    """Shapes of all values once the first axes of every input have these lengths."""
    fixed = _without_weights(graph)
    for value in fixed.graph.input[: len(graph.graph.input)]:
        for axis, size in zip(value.type.tensor_type.shape.dim, leading, strict=False):
            axis.dim_value = size
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    shapes = _inferred(fixed)
    while _fold_lengths(fixed.graph, _opsets(fixed)[0], shapes):
        shapes = _inferred(fixed)
    return shapes


def _opsets(graph: onnx.ModelProto) -> list[int]:
    return [entry.version for entry in graph.opset_import if entry.domain in ("", "ai.onnx")]


def _without_weights(graph: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which large constants are inputs: their shapes say enough, and are no megabytes."""
    copy = onnx.ModelProto(ir_version=graph.ir_version, opset_import=graph.opset_import)
    for part in ("node", "input", "output"):
        getattr(copy.graph, part).extend(getattr(graph.graph, part))
    copy.graph.name = graph.graph.name
    for tensor in graph.graph.initializer:
        if math.prod(tensor.dims) < _SMALL:
            copy.graph.initializer.append(tensor)
        else:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            copy.graph.input.append(value)
    return copy


def _inferred(graph: onnx.ModelProto) -> _Shapes:
    """What follows from the shapes of the inputs; an unknown length is 0."""
    inferred = onnx.shape_inference.infer_shapes(graph, data_prop=True).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    shapes = {
        value.name: tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim)
        for value in values
    }
    return shapes | {tensor.name: tuple(tensor.dims) for tensor in inferred.initializer}


def _fold_lengths(graph: GraphProto, opset: int, shapes: _Shapes) -> int:
    """Make constants of lengths and of what is computed from them, and say how many those are.

    The checker knows a slice up to a constant, not one up to a length that the graph looks up.
    """
    known = {t.name: numpy_helper.to_array(t) for t in graph.initializer if _is_length(t)}
    kept = []
    for node in graph.node:
        shape = shapes.get(node.input[0]) if node.op_type == "Shape" else None
        if shape and 0 not in shape:
            ends = {each.name: each.i for each in node.attribute}
            value = np.array(shape[ends.get("start", 0) : ends.get("end", len(shape))])
        elif node.input and all(name in known for name in node.input):
            evaluator = ReferenceEvaluator(node, opsets={"": opset})
            [value] = evaluator.run(None, {name: known[name] for name in node.input})
        else:
            kept.append(node)
            continue
        known[node.output[0]] = np.asarray(value)
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), node.output[0]))
    folded = len(graph.node) - len(kept)
    del graph.node[:]
    graph.node.extend(kept)
    return folded


def _is_length(tensor: TensorProto) -> bool:
    return tensor.data_type == TensorProto.INT64 and math.prod(tensor.dims) < _SMALL


def _flops(node: NodeProto, shapes: _Shapes) -> int:
    known = [shapes.get(name, ()) for name in (*node.input[:2], *node.output[:1])]
    if len(known) < 3 or not all(known) or any(0 in shape for shape in known):
        raise ValueError(f"graph must tell the shape of every product, not so at {node.name}")
    first, second, result = known
    if node.op_type == "Conv":
        return 2 * math.prod(result) * math.prod(second[1:])
    if node.op_type == "Einsum":
        return 2 * math.prod(_einsum_lengths(node, first, second).values())
    transposed = node.op_type == "Gemm" and any(a.name == "transA" and a.i for a in node.attribute)
    return 2 * math.prod(result) * (first[0] if transposed else first[-1])


def _einsum_lengths(
    node: NodeProto, first: tuple[int, ...], second: tuple[int, ...]
) -> dict[str, int]:
    """The length of every index of a product of two tensors."""
    equation = next(each.s.decode() for each in node.attribute if each.name == "equation")
    try:
        left, right = equation.replace(" ", "").split("->")[0].split(",")
        return dict(zip(left, first, strict=True)) | dict(zip(right, second, strict=True))
    except ValueError as error:
        rule = "must name every axis of its two tensors, not so at"
        raise ValueError(f"Einsum {rule} {node.name}") from error

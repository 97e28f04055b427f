"""What a graph is made of: operators, the work of its products, the types of its weights."""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from export.graphs import expose, open_graph
from export.samples import Feed

_PRODUCTS = ("MatMul", "MatMulInteger", "Gemm", "Conv", "Einsum")
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


def operator_costs(content: bytes, feed: Feed) -> list[OperatorCost]:
    """Count the operators of a graph and the work of its products for one sample.

    Args:
        content: an ONNX file.
        feed: samples, whatever they show: the graph is run to learn the shapes of its products.

    Returns:
        The operators, the most work first, then the most nodes.

    Raises:
        ValueError: the graph cannot be run.
    """
    graph, samples = onnx.load_from_string(content), len(next(iter(feed.values())))
    shapes, flops = _shapes(graph, feed), Counter()
    counts = Counter(node.op_type for node in graph.graph.node)
    for node in _products(graph):
        flops[node.op_type] += _flops(node, shapes)
    costs = [
        OperatorCost(name=name, count=count, flops=flops[name] // samples)
        for name, count in counts.items()
    ]
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


def _shapes(graph: onnx.ModelProto, feed: Feed) -> _Shapes:
    """Shapes of what goes into products and comes out of them, from running the graph once."""
    _widen(graph)
    made = {name for node in graph.graph.node for name in node.output}
    factors = {name for node in _products(graph) for name in (*node.input[:2], *node.output)}
    inner = (factors & made) - {value.name for value in graph.graph.output}
    values = open_graph(expose(graph.SerializeToString(), sorted(inner)), "fp32").outputs(feed)
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.graph.initializer}
    return weights | {name: value.shape for name, value in (feed | values).items()}


def _widen(graph: onnx.ModelProto) -> None:
    """Let a graph in bf16 compute in fp32, which every processor does, on the same shapes."""
    for tensor in graph.graph.initializer:
        if tensor.data_type == TensorProto.BFLOAT16:
            values = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for node in graph.graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.BFLOAT16:
                attribute.i = TensorProto.FLOAT


def _products(graph: onnx.ModelProto) -> list[NodeProto]:
    return [node for node in graph.graph.node if node.op_type in _PRODUCTS]


def _flops(node: NodeProto, shapes: _Shapes) -> int:
    first, second, result = (shapes[name] for name in (*node.input[:2], node.output[0]))
    if node.op_type == "Conv":
        return 2 * math.prod(result) * math.prod(second[1:])
    if node.op_type == "Einsum":
        equation = next(each.s.decode() for each in node.attribute if each.name == "equation")
        left, right = equation.replace(" ", "").split("->")[0].split(",")
        pairs = (*zip(left, first, strict=True), *zip(right, second, strict=True))
        return 2 * math.prod(dict(pairs).values())
    transposed = node.op_type == "Gemm" and any(a.name == "transA" and a.i for a in node.attribute)
    return 2 * math.prod(result) * (first[0] if transposed else first[-1])

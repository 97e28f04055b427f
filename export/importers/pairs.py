"""Graphs that compute with integers (QLinearConv, ...), written with pairs around plain operators.

Source: ONNX, operators QLinearConv and QLinearMatMul; ONNX Runtime, contributed operators.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

# By operator: where its operands begin, each with its scale and zero point, and where those of its
# answer do. A bias has none of its own.
_PLACES = {
    "QLinearConv": ((0, 3), 6),
    "QLinearMatMul": ((0, 3), 6),
    "QGemm": ((0, 3), 7),
    "QLinearAdd": ((0, 3), 6),
    "QLinearMul": ((0, 3), 6),
    "QLinearAveragePool": ((0,), 3),
    "QLinearGlobalAveragePool": ((0,), 3),
    "QLinearLeakyRelu": ((0,), 3),
    "QLinearSigmoid": ((0,), 3),
    "QLinearSoftmax": ((0,), 3),
}
_BIAS = {"QLinearConv": 8, "QGemm": 6}
_DROPPED = {"channels_last", "opset"}


def with_pairs(model: ModelProto) -> None:
    """Write each operator on integers as DequantizeLinear, the operator on numbers, QuantizeLinear.

    Raises:
        ValueError: an operator on integers is not known, or has its channels last.
    """
    graph = model.graph
    known = {tensor.name: tensor for tensor in graph.initializer}
    made: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "QLinearConcat":
            made += _joined(node)
        elif node.op_type in _PLACES:
            made += _paired(node, known)
        elif node.op_type.startswith(("QLinear", "QAttention", "QEmbed")):
            raise ValueError(f"{node.op_type} is not known")
        else:
            made.append(node)
    graph.ClearField("node")
    graph.node.extend(made)
    graph.initializer.extend(
        tensor for name, tensor in known.items() if name.endswith("/scale of bias")
    )


def _paired(node: NodeProto, known: dict[str, TensorProto]) -> list[NodeProto]:
    places, end = _PLACES[node.op_type]
    name, made, given = node.output[0], list[NodeProto](), list[str]()
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if attributes.get("channels_last"):
        raise ValueError(f"{node.op_type} must have its channels first")
    for place in places:
        given.append(f"{name}/operand {place}")
        made.append(
            helper.make_node(
                "DequantizeLinear",
                node.input[place : place + 3],
                [given[-1]],
                **_axis(node.op_type, place, attributes),
            )
        )
    bias = _BIAS.get(node.op_type)
    if bias is not None and len(node.input) > bias and node.input[bias]:
        scale = f"{name}/scale of bias"
        values = _scale_of_bias(node, known, attributes)
        known[scale] = numpy_helper.from_array(values, scale)
        given.append(f"{name}/bias")
        made.append(
            helper.make_node("DequantizeLinear", [node.input[bias], scale], [given[-1]], axis=0)
        )
    plain = NodeProto(op_type=_plain(node.op_type), input=given, output=[f"{name}/numbers"])
    plain.attribute.extend(each for each in node.attribute if each.name not in _DROPPED)
    ends = [f"{name}/numbers", *node.input[end : end + 2]]
    return [*made, plain, helper.make_node("QuantizeLinear", ends, [name])]


def _joined(node: NodeProto) -> list[NodeProto]:
    """QLinearConcat, whose answer's scale comes first."""
    name, made, given = node.output[0], list[NodeProto](), list[str]()
    for place in range(2, len(node.input), 3):
        given.append(f"{name}/operand {place}")
        triple = node.input[place : place + 3]
        made.append(helper.make_node("DequantizeLinear", triple, [given[-1]]))
    plain = NodeProto(op_type="Concat", input=given, output=[f"{name}/numbers"])
    plain.attribute.extend(node.attribute)
    ends = [f"{name}/numbers", *node.input[:2]]
    return [*made, plain, helper.make_node("QuantizeLinear", ends, [name])]


def _axis(operator: str, place: int, attributes: Mapping[str, object]) -> dict[str, Any]:
    """The axis of weights along which their scales lie, where there is one for each channel."""
    if place == 0:
        return {}
    if operator == "QLinearConv" or (operator == "QGemm" and attributes.get("transB")):
        return {"axis": 0}
    return {"axis": -1}


def _scale_of_bias(
    node: NodeProto, known: Mapping[str, TensorProto], attributes: Mapping[str, Any]
) -> np.ndarray:
    """That of the products which a bias is added to."""
    try:
        first, second = (numpy_helper.to_array(known[node.input[place]]) for place in (1, 4))
    except KeyError:
        raise ValueError(f"{node.op_type} must have constant scales") from None
    return np.asarray(first * second * attributes.get("alpha", 1), np.float32)


def _plain(operator: str) -> str:
    return operator.removeprefix("QLinear") if operator != "QGemm" else "Gemm"

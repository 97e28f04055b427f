"""A tensor kept in another file is found wherever a graph can hold one."""

from collections.abc import Callable

import onnx
import pytest
from onnx import TensorProto, helper

from runtimes.artifact import refers_outside


def outside(name: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1])
    tensor.external_data.add(key="location", value="../weights")
    return tensor


def model() -> onnx.ModelProto:
    return helper.make_model(helper.make_graph([], "g", [], []))


def in_initializer(graph: onnx.ModelProto) -> None:
    graph.graph.initializer.append(outside("w"))


def in_location_alone(graph: onnx.ModelProto) -> None:
    graph.graph.initializer.add(name="w", data_location=TensorProto.EXTERNAL)


def in_sparse(graph: onnx.ModelProto) -> None:
    graph.graph.sparse_initializer.add().indices.CopyFrom(outside("w"))


def in_constant(graph: onnx.ModelProto) -> None:
    graph.graph.node.append(helper.make_node("Constant", [], ["c"], value=outside("w")))


def in_branch(graph: onnx.ModelProto) -> None:
    inner = model()
    in_constant(inner)
    graph.graph.node.append(helper.make_node("If", ["c"], ["y"], then_branch=inner.graph))


def in_function(graph: onnx.ModelProto) -> None:
    graph.functions.add(node=[helper.make_node("Constant", [], ["c"], value=outside("w"))])


def in_default_of_a_function(graph: onnx.ModelProto) -> None:
    graph.functions.add(attribute_proto=[helper.make_attribute("value", outside("w"))])


def in_training(graph: onnx.ModelProto) -> None:
    in_initializer(inner := model())
    graph.training_info.add(algorithm=inner.graph)


@pytest.mark.parametrize(
    "place",
    [
        in_initializer,
        in_location_alone,
        in_sparse,
        in_constant,
        in_branch,
        in_function,
        in_default_of_a_function,
        in_training,
    ],
)
def test_external_data_is_found(place: Callable[[onnx.ModelProto], None]) -> None:
    graph = model()
    assert not refers_outside(graph.SerializeToString())
    place(graph)
    assert refers_outside(graph.SerializeToString())

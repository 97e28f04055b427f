"""Find out whether an ONNX graph keeps tensors in other files."""

from collections.abc import Iterable, Iterator

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto


def refers_outside(content: bytes) -> bool:
    """Whether a graph names external data, anywhere, or cannot be parsed at all.

    A digest vouches for one file; data in another file would escape it, and its path could leave
    the artifact's folder.

    Args:
        content: the bytes of an ONNX file.
    """
    model = ModelProto()
    try:
        model.ParseFromString(content)
    except Exception:  # protobuf's C and Python parsers raise different, private types
        return True
    return any(
        tensor.data_location == TensorProto.EXTERNAL or tensor.external_data
        for tensor in _tensors(model)
    )


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    yield from _graph_tensors(model.graph)
    for training in model.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)
    for function in model.functions:
        yield from _node_tensors(function.node)
        for attribute in function.attribute_proto:
            yield from _attribute_tensors(attribute)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from _attribute_tensors(attribute)


def _attribute_tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    yield from (attribute.t, *attribute.tensors)
    for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
        yield from (sparse.values, sparse.indices)
    for graph in (attribute.g, *attribute.graphs):
        yield from _graph_tensors(graph)

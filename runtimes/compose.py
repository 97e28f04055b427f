"""Put the graphs that an import added around the graph that it imported."""

from onnx import GraphProto, ModelProto

_OURS = ("images", "tokens", "mask", "shift", "logits")


def inner_name(name: str) -> str:
    """What a value of an imported graph is called once ours are around it, which keep their own."""
    return f"source/{name}" if name in _OURS else name


def compose(before: bytes, source: bytes, after: bytes) -> bytes:
    """One graph of three, each given as an ONNX file of one opset.

    Args:
        before: from `images`, or `tokens` and `mask`, to the source's inputs, by their
            `inner_name`.
        source: with these inputs, beside its weights, and one output.
        after: from the source's output, by its `inner_name`, to `logits`.
    """
    whole = ModelProto.FromString(source)
    graph = whole.graph
    _rename(graph)
    first, last = (ModelProto.FromString(content).graph for content in (before, after))
    nodes = [*first.node, *graph.node, *last.node]
    weights = {tensor.name for tensor in graph.initializer}  # inputs too, before IR version 4
    inputs = [*first.input, *(value for value in graph.input if value.name in weights)]
    for part in ("node", "input", "output"):
        graph.ClearField(part)
    graph.node.extend(nodes)
    graph.input.extend(inputs)
    graph.output.extend(last.output)
    return whole.SerializeToString()


def _rename(graph: GraphProto) -> None:
    """Give way to the names of ours, in the graph and in those within its nodes."""
    for node in graph.node:
        for ends in (node.input, node.output):
            for index, name in enumerate(ends):
                ends[index] = inner_name(name)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner)
    values = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
    for value in (*values, *(tensor.values for tensor in graph.sparse_initializer)):
        value.name = inner_name(value.name)

"""Where an imported graph looks its tokens up in a table of embeddings."""

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import ModelProto, NodeProto, TensorProto

_KEEPING = {"Cast", "Identity"}
_RESHAPING = {"Reshape", "Squeeze", "Unsqueeze", "Flatten"}


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """One node that gathers rows of a table.

    Attributes:
        place: of the node among the graph's.
        rows: of the table.
        width: of the table.
        kind: of its numbers, as ONNX counts types.
        flat: whether tokens come in another shape there.
    """

    place: int
    rows: int
    width: int
    kind: int
    flat: bool


def find_lookups(model: ModelProto, tokens: str) -> list[Lookup]:
    """The tables of embeddings in which a graph looks up one of its inputs."""
    made = {name: node for node in model.graph.node for name in node.output}
    tables = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].HasField("t"):
            tables[node.output[0]] = node.attribute[0].t
    found = []
    for place, node in enumerate(model.graph.node):
        if node.op_type != "Gather" or any(each.i for each in node.attribute):
            continue
        name, rounded = _origin(node.input[0], made, {"DequantizeLinear", *_KEEPING})
        start, passed = _origin(node.input[1], made, _KEEPING | _RESHAPING)
        table = tables.get(name)
        if start != tokens or table is None or len(table.dims) != 2:
            continue
        kind = TensorProto.FLOAT if rounded else table.data_type
        flat = bool(passed & _RESHAPING)
        rows, width = table.dims
        found.append(Lookup(place=place, rows=rows, width=width, kind=kind, flat=flat))
    return found


def _origin(name: str, made: Mapping[str, NodeProto], through: set[str]) -> tuple[str, set[str]]:
    """Where a value comes from, and the operators that it has passed on the way."""
    passed: set[str] = set()
    while name in made and made[name].op_type in through:
        passed.add(made[name].op_type)
        name = made[name].input[0]
    return name, passed

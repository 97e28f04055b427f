"""The graph that an import puts before one that reads tokens, and the place of its gradients."""

from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from export.importers.lookups import Lookup
from export.importers.text_input import TextInput
from runtimes.compose import inner_name
from runtimes.gradient import EMBEDDED, SHIFT

_SHIFTED = "assay/shift"
_PADS_AS_INPUT = 11  # the first opset in which they are


class _Nodes(list[NodeProto]):
    """Nodes under way, each called by what it reads, names or constants."""

    def add(self, operator: str, *inputs: str | np.ndarray, **attributes: Any) -> str:
        """Put a node at the end; the name of what it gives."""
        names = []
        for value in inputs:
            names.append(value if isinstance(value, str) else f"assay/before/{len(self)}")
            if not isinstance(value, str):
                tensor = numpy_helper.from_array(value)
                self.append(helper.make_node("Constant", [], [names[-1]], value=tensor))
        made = f"assay/before/{len(self)}"
        self.append(helper.make_node(operator, names, [made], **attributes))
        return made


def tokens_before(
    model: ModelProto, opset: int, spec: TextInput, *, alone: bool, shift: int | None = None
) -> bytes:
    """From `tokens` (B, N) int64 and `mask` (B, N) bool to what a graph reads, as ONNX.

    Marks are put around the tokens, which lie at the beginning of a row, and everything behind them
    becomes padding. All is arithmetic of integers, which the oldest opset has.

    Args:
        model: the graph.
        opset: of ONNX's own operators.
        spec: its input file, complete.
        alone: whether it is given one text at a time, which then is not padded.
        shift: the width of embeddings, to which `shift` (B, N, width) float32 is added; None adds
            none.
    """
    nodes = _Nodes()
    tokens, mask = "tokens", nodes.add("Cast", "mask", to=TensorProto.INT64)
    if alone and spec.length is None and shift is None:
        real = nodes.add("Reshape", "mask", np.array([-1]))
        tokens, mask = (nodes.add("Compress", each, real, axis=1) for each in (tokens, mask))
    made = _marked(nodes, spec, tokens, mask)
    kinds = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    reads = [("tokens", TensorProto.INT64, 2), ("mask", TensorProto.BOOL, 2)]
    gives = []
    for role, name in spec.roles.items():
        cast = nodes.add("Cast", made[role], to=kinds[name])
        nodes.append(helper.make_node("Identity", [cast], [inner_name(name)]))
        gives.append((inner_name(name), kinds[name], 2))
    if shift is not None:
        reads.append((SHIFT, TensorProto.FLOAT, 3))
        gives.append((_SHIFTED, TensorProto.FLOAT, 3))
        rest = spec.length - spec.max_len - len(spec.before) if spec.length else len(spec.behind)
        pads = np.array([0, len(spec.before), 0, 0, rest, 0])
        if opset < _PADS_AS_INPUT:
            padded = nodes.add("Pad", SHIFT, pads=pads.tolist())
        else:
            padded = nodes.add("Pad", SHIFT, pads)
        nodes.append(helper.make_node("Identity", [padded], [_SHIFTED]))
    inputs, outputs = (
        [
            helper.make_tensor_value_info(name, kind, ["batch", f"{name}/length", shift][:axes])
            for name, kind, axes in values
        ]
        for values in (reads, gives)
    )
    graph = helper.make_graph(nodes, "assay", inputs, outputs)
    whole = ModelProto(ir_version=model.ir_version, producer_name="assay", graph=graph)
    whole.opset_import.append(helper.make_opsetid("", opset))
    return whole.SerializeToString()


def _marked(nodes: _Nodes, spec: TextInput, tokens: str, mask: str) -> dict[str, str]:
    """Tokens, mask and types (B, N') int64 with marks, in the length that the graph wants."""
    before, behind = spec.before, spec.behind
    first = nodes.add("Gather", tokens, np.array([0]), axis=1)
    zero = nodes.add("Mul", first, np.array(0))  # (B, 1)

    def row(left: list[int], middle: str, right: list[int]) -> str:
        """A part of every row, with constants at both of its ends."""
        right = right + [0] * (spec.length or 0)
        ends = [np.array([each], np.int64) for each in (left, right)]
        parts = [nodes.add("Add", zero, end) if end.size else "" for end in ends]
        parts = [part for part in (parts[0], middle, parts[1]) if part]
        whole = nodes.add("Concat", *parts, axis=1)
        if spec.length is None:
            return whole
        return nodes.add("Gather", whole, np.arange(spec.length), axis=1)

    # Each reaches a place further than the one before: the last place is that of a mark.
    count = len(behind)
    reach = [
        row([1] * (len(before) + more), mask, [0] * (count - more)) for more in range(count + 1)
    ]
    ids = nodes.add("Mul", row(before, tokens, [0] * count), reach[0])
    for mark, short, long in zip(behind, reach, reach[1:], strict=False):
        place = nodes.add("Sub", long, short)
        ids = nodes.add("Add", ids, nodes.add("Mul", place, np.array(mark)))
    rest = nodes.add("Sub", np.array(1), reach[-1])
    pads = nodes.add("Mul", rest, np.array(spec.tokenizer.pad))
    types = nodes.add("Mul", reach[-1], np.array(0))
    return {"tokens": nodes.add("Add", ids, pads), "mask": reach[-1], "types": types}


def open_embedding(model: ModelProto, lookup: Lookup) -> None:
    """Let a graph add what `tokens_before` gives of a shift to what its table gives."""
    graph = model.graph
    node = graph.node[lookup.place]
    given, node.output[0] = node.output[0], EMBEDDED
    nodes = [helper.make_node("Cast", [_SHIFTED], ["assay/cast"], to=lookup.kind)]
    if lookup.flat:
        nodes.append(helper.make_node("Shape", [EMBEDDED], ["assay/shape"]))
        nodes.append(helper.make_node("Reshape", ["assay/cast", "assay/shape"], ["assay/formed"]))
    nodes.append(helper.make_node("Add", [EMBEDDED, nodes[-1].output[0]], [given]))
    for place, each in enumerate(nodes, lookup.place + 1):
        graph.node.insert(place, each)

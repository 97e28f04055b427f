"""Turn an fp32 graph into one of 16 bit: fp16 or bf16 wherever its operators know the type."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from export.onnx import check_graph

_FLOAT = TensorProto.FLOAT
_TYPES = {
    "fp16": (TensorProto.FLOAT16, "tensor(float16)"),
    "bf16": (TensorProto.BFLOAT16, "tensor(bfloat16)"),
}
# The first in which Conv and Elu know bf16; nothing that our graphs hold changed its meaning.
_OPSET = 22
_SMALLEST_FP16 = float(np.finfo(np.float16).smallest_normal)


def to_half(content: bytes, precision: Literal["fp16", "bf16"]) -> bytes:
    """Store weights and compute in 16 bit; inputs and logits stay float32.

    An operator that does not know the type keeps float32 between two casts. A lower bound that
    guards a division becomes the smallest normal number of fp16 where it would round to zero.

    Args:
        content: an fp32 graph by `to_onnx`.
        precision: which type.

    Raises:
        ValueError: see `check_graph`.
    """
    graph = onnx.load_from_string(content)
    graph.opset_import[0].version = max(_OPSET, graph.opset_import[0].version)
    _Rewriter(graph, precision).run()
    check_graph(graph)
    return graph.SerializeToString(deterministic=True)


class _Rewriter:
    """Rewrites a graph node by node, in the order of computation.

    A float value lies under its own name in the type that its producer gives, and in the other type
    under another name once somebody asks for it.
    """

    def __init__(self, graph: ModelProto, precision: Literal["fp16", "bf16"]) -> None:
        self.graph = graph.graph
        self.opset = graph.opset_import[0].version
        self.low, self.type_name = _TYPES[precision]
        self.floats = _float_values(graph)
        self.tensors = {tensor.name: tensor for tensor in self.graph.initializer}
        self.types = dict.fromkeys(self.floats, _FLOAT)
        self.made: dict[tuple[str, int], str] = {}
        self.nodes: list[NodeProto] = []

    def run(self) -> None:
        """Rewrite every node, and leave the constants that are still used."""
        for node in list(self.graph.node):
            self._rewrite(node)
        for output in self.graph.output:
            self._keep_float(output.name)
        used = {name for node in self.nodes for name in node.input}
        kept = [tensor for tensor in self.graph.initializer if tensor.name in used]
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        del self.graph.initializer[:]
        self.graph.initializer.extend(kept)

    def _rewrite(self, node: NodeProto) -> None:
        schema = onnx.defs.get_schema(node.op_type, self.opset, node.domain)
        known = {
            constraint.type_param_str
            for constraint in schema.type_constraints
            if self.type_name in constraint.allowed_type_strs
        }
        guard = node.op_type == "Clip"
        for index, name in enumerate(node.input):
            if name in self.floats:
                formal = _formal(schema.inputs, index)
                node.input[index] = self._as(name, self.low if formal in known else _FLOAT, guard)
        low_output = False
        for index, name in enumerate(node.output):
            if name in self.floats:
                low_output = _formal(schema.outputs, index) in known
                self.types[name] = self.low if low_output else _FLOAT
        if low_output:
            self._lower_attributes(node)
        self.nodes.append(node)

    def _lower_attributes(self, node: NodeProto) -> None:
        """What fixes the type of an output: the target of a Cast, the value of a constant."""
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == _FLOAT:
                attribute.i = self.low
            elif attribute.name == "value" and attribute.t.data_type == _FLOAT:
                attribute.t.CopyFrom(self._lowered(attribute.t, guard=False))

    def _as(self, name: str, kind: int, guard: bool = False) -> str:
        """The name of a value in a type."""
        if self.types[name] == kind:
            return name
        key = (f"{name}|bound" if guard else name, kind)
        if key not in self.made:
            self.made[key] = f"{key[0]}|{TensorProto.DataType.Name(kind).lower()}"
            self._make(name, self.made[key], kind, guard)
        return self.made[key]

    def _make(self, name: str, made: str, kind: int, guard: bool) -> None:
        if name in self.tensors:
            tensor = self._lowered(self.tensors[name], guard)
            tensor.name = made
            self.graph.initializer.append(tensor)
        else:
            cast = helper.make_node("Cast", [name], [made], name=f"Cast_{made}", to=kind)
            self.nodes.append(cast)

    def _lowered(self, tensor: TensorProto, guard: bool) -> TensorProto:
        values = numpy_helper.to_array(tensor)
        if self.low == TensorProto.BFLOAT16:
            return numpy_helper.from_array(values.astype(_BFLOAT16), tensor.name)
        limit = np.finfo(np.float16).max
        finite = np.where(np.isfinite(values), values.clip(-limit, limit), values)
        if guard:
            finite = np.maximum(finite, _SMALLEST_FP16)
        return numpy_helper.from_array(finite.astype(np.float16), tensor.name)

    def _keep_float(self, name: str) -> None:
        """Let an output of the graph be float32 under its own name."""
        if self.types[name] == _FLOAT:
            return
        inner = f"{name}|low"
        for node in self.nodes:
            for names in (node.input, node.output):
                for index, each in enumerate(names):
                    if each == name:
                        names[index] = inner
        cast = helper.make_node("Cast", [inner], [name], name=f"Cast_{name}", to=_FLOAT)
        self.nodes.append(cast)


_BFLOAT16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)


def _float_values(graph: ModelProto) -> set[str]:
    inferred = onnx.shape_inference.infer_shapes(graph).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    floats = {v.name for v in values if v.type.tensor_type.elem_type == _FLOAT}
    return floats | {t.name for t in inferred.initializer if t.data_type == _FLOAT}


def _formal(parameters: Sequence[onnx.defs.OpSchema.FormalParameter], index: int) -> str:
    """The type variable of an argument; the last parameter may stand for many."""
    return parameters[min(index, len(parameters) - 1)].type_str

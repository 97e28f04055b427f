"""The graph of an image classifier for verifiers: primitive operators, one input, fixed shapes.

Verifiers of neural networks know few operators and no dynamic batch. So the served graph is
unrolled for a batch of one, what is constant in it is computed, and layer normalization and GELU
are written out.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from runtimes.onnx import open_session

PRIMITIVE = frozenset(
    "Abs Add AveragePool BatchNormalization Clip Concat Conv Div Elu Erf Exp Flatten Gather Gemm "
    "GlobalAveragePool Identity LeakyRelu Log MatMul Max MaxPool Min Mul Neg Pad Pow Reciprocal "
    "ReduceMax ReduceMean ReduceSum Relu Reshape Sigmoid Slice Softmax Split Sqrt Squeeze Sub Sum "
    "Tanh Transpose Unsqueeze".split()
)
"""Operators that a graph for verifiers is made of."""
_METRIC = re.compile(r"m_\d+")
_MOST_FOLDED = 10**7  # elements of a constant; more is left to the runtime


def verifiable(content: bytes, metric: Mapping[str, np.ndarray] | None = None) -> bytes:
    """Rewrite a graph that classifies images for verifiers.

    Args:
        content: an ONNX file, from `images` (B, C, H, W) to `logits` (B, K), both float32.
        metric: values of m by name, see `metric_of`, to freeze it there; the graph is then another
            function than the model, equal to it where m has these values.

    Returns:
        An ONNX file from `images` (1, C, H, W) to `logits` (1, K), of operators in `PRIMITIVE`.

    Raises:
        ValueError: an operator cannot be written so.
    """
    model = _unrolled(content, metric, _written_out)
    _refuse_others(model.graph.node)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


def unrolled(content: bytes) -> bytes:
    """The same with composed operators as they are, whatever they are; see `verifiable`."""
    return _unrolled(content, None, lambda node, *_: iter([node])).SerializeToString()


def _unrolled(
    content: bytes,
    metric: Mapping[str, np.ndarray] | None,
    write: "Callable[[NodeProto, int, dict[str, np.ndarray]], Iterator[NodeProto]]",
) -> ModelProto:
    """A graph for a batch of one, without nodes that compute constants."""
    model = ModelProto.FromString(content)
    _fix_batch(model)
    nodes: list[NodeProto] = list(model.graph.node)
    constants = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    if metric is not None:
        nodes = [node for node in nodes if not set(node.output) & set(metric)]
        constants |= {name: np.asarray(value, np.float32) for name, value in metric.items()}
    nodes = [made for node in nodes for made in write(node, _opset(model), constants)]
    nodes = _folded(nodes, constants, _shapes(model))
    nodes = _needed(nodes, {value.name for value in model.graph.output})
    _fill(model, nodes, constants)
    return model


def metric_of(content: bytes, image: np.ndarray) -> dict[str, np.ndarray]:
    """m of every elliptical layer of a graph for one image (C, H, W), by name: "m_2", "m_3", ...

    Raises:
        ValueError: the graph names none.
    """
    model = ModelProto.FromString(content)
    names = metric_names(model)
    if not names:
        raise ValueError("graph must name its m to freeze it")
    for name in names:
        model.graph.output.append(onnx.ValueInfoProto(name=name))
    session = open_session(model.SerializeToString(), threads=1)
    values = session.run(names, {"images": image[None]})
    return {name: np.asarray(value) for name, value in zip(names, values, strict=True)}


def metric_names(model: ModelProto) -> list[str]:
    """What m of each elliptical layer is called in a graph that export wrote."""
    made = (name for node in model.graph.node for name in node.output)
    return [name for name in made if _METRIC.fullmatch(name)]


def _opset(model: ModelProto) -> int:
    return next(one.version for one in model.opset_import if one.domain in ("", "ai.onnx"))


def _fix_batch(model: ModelProto) -> None:
    """Give the first axis of inputs and outputs the length 1, and forget the shapes within."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    model.graph.ClearField("input")
    model.graph.input.extend(inputs)  # weights were inputs too, before IR version 4
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type != TensorProto.FLOAT:
            raise ValueError(f"{value.name} must be float32")
        value.type.tensor_type.shape.dim[0].dim_value = 1


def _shapes(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes that are known of the values of a graph."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    found = {}
    for value in (*inferred.value_info, *inferred.input):
        dims = value.type.tensor_type.shape.dim
        if all(dim.HasField("dim_value") for dim in dims):
            found[value.name] = tuple(dim.dim_value for dim in dims)
    return found


def _folded(
    nodes: list[NodeProto],
    constants: dict[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
) -> list[NodeProto]:
    """The nodes that depend on the image; what the others give becomes constant."""
    left = []
    for node in nodes:
        if node.op_type == "Shape" and node.input[0] in shapes:
            part = slice(_attribute(node, "start", 0), _attribute(node, "end", None))
            constants[node.output[0]] = np.array(shapes[node.input[0]][part], np.int64)
        elif all(name in constants or not name for name in node.input):
            feed = {name: constants[name] for name in node.input if name}
            values = ReferenceEvaluator(node).run(None, feed)
            if sum(np.size(value) for value in values) > _MOST_FOLDED:
                left.append(node)
                continue
            constants.update(zip(node.output, map(np.asarray, values), strict=True))
        else:
            left.append(node)
    return left


def _needed(nodes: list[NodeProto], outputs: set[str]) -> list[NodeProto]:
    """The nodes that something reads."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    return kept[::-1]


def _refuse_others(nodes: Iterable[NodeProto]) -> None:
    """Refuse what verifiers cannot be expected to know."""
    others = {node.op_type for node in nodes} - PRIMITIVE
    if others:
        raise ValueError(
            "graph must consist of primitive operators in float32 to be written for verifiers, and "
            f"has {', '.join(sorted(others))}"
        )


def _fill(model: ModelProto, nodes: list[NodeProto], constants: Mapping[str, np.ndarray]) -> None:
    """Put nodes and the constants that they read into a graph."""
    read = dict.fromkeys(name for node in nodes for name in node.input)
    tensors = [numpy_helper.from_array(constants[name], name) for name in read if name in constants]
    for field, values in (("node", nodes), ("initializer", tensors)):
        model.graph.ClearField(field)
        getattr(model.graph, field).extend(values)
    del model.metadata_props[:]


def _attribute(node: NodeProto, name: str, default: Any) -> Any:
    found = [helper.get_attribute_value(one) for one in node.attribute if one.name == name]
    return found[0] if found else default


class _Writer:
    """Nodes that take the place of one."""

    def __init__(self, node: NodeProto, constants: dict[str, np.ndarray]) -> None:
        self.nodes: list[NodeProto] = []
        self._node, self._constants = node, constants

    def add(self, kind: str, *inputs: str | float, output: str | None = None, **about: Any) -> str:
        """Append a node; numbers become constants. Returns its output."""
        name = output or f"{self._node.output[0]}/{len(self.nodes)}"
        named = [one if isinstance(one, str) else self.constant(float(one)) for one in inputs]
        self.nodes.append(helper.make_node(kind, named, [name], **about))
        return name

    def constant(self, value: float | np.ndarray) -> str:
        """The name of a constant, float32 where it is a number."""
        name = f"{self._node.output[0]}/constant_{len(self._constants)}"
        array = np.array(value)
        self._constants[name] = array.astype(np.float32) if array.dtype.kind == "f" else array
        return name


def _written_out(
    node: NodeProto, opset: int, constants: dict[str, np.ndarray]
) -> Iterator[NodeProto]:
    """A node, or in the place of a composed one those that it consists of."""
    rules: dict[str, Callable[[NodeProto, int, _Writer], None]] = {
        "LayerNormalization": _layer_normalization,
        "Gelu": _gelu,
        "Cast": _cast,
    }
    if node.op_type not in rules:
        yield node
        return
    writer = _Writer(node, constants)
    rules[node.op_type](node, opset, writer)
    yield from writer.nodes


def _layer_normalization(node: NodeProto, opset: int, to: _Writer) -> None:
    """Along the last axis: (x - mean) / sqrt(mean of squares + epsilon) * scale + bias."""
    x, scale, *bias = node.input
    if _attribute(node, "axis", -1) != -1:
        raise ValueError("layer normalization must be along the last axis")

    def mean(name: str) -> str:
        """Along the last axis."""
        if opset < 18:
            return to.add("ReduceMean", name, axes=[-1])
        return to.add("ReduceMean", name, to.constant(np.array([-1], np.int64)))

    centered = to.add("Sub", x, mean(x))
    variance = to.add("Add", mean(to.add("Mul", centered, centered)),
                      float(_attribute(node, "epsilon", 1e-5)))  # fmt: skip
    normal = to.add("Div", centered, to.add("Sqrt", variance))
    scaled = to.add("Mul", normal, scale, output=None if bias else node.output[0])
    if bias:
        to.add("Add", scaled, bias[0], output=node.output[0])


def _gelu(node: NodeProto, opset: int, to: _Writer) -> None:
    """x / 2 * (1 + erf(x / sqrt(2))), or its approximation by tanh."""
    del opset
    [x] = node.input
    if _attribute(node, "approximate", b"none") == b"none":
        bent = to.add("Erf", to.add("Mul", x, math.sqrt(0.5)))
    else:
        cubed = to.add("Mul", to.add("Mul", to.add("Mul", x, x), x), 0.044715)
        bent = to.add("Tanh", to.add("Mul", to.add("Add", x, cubed), math.sqrt(2 / math.pi)))
    half = to.add("Mul", x, 0.5)
    to.add("Mul", half, to.add("Add", bent, 1.0), output=node.output[0])


def _cast(node: NodeProto, opset: int, to: _Writer) -> None:
    """What casts to float32 changes nothing here; other types are refused by their name."""
    del opset
    single = _attribute(node, "to", None) == TensorProto.FLOAT
    about = {} if single else {"to": _attribute(node, "to", None)}
    to.add("Identity" if single else "Cast", node.input[0], output=node.output[0], **about)

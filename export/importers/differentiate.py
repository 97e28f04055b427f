"""Write the gradient of a graph as another graph, in a process of its own.

`python -m export.importers.differentiate SOURCE TARGET START BATCH LENGTH`, started by
`export.importers.gradient`; onnx-ad is imported nowhere else.
"""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import (
    ModelProto,
    NodeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
    shape_inference,
    version_converter,
)

from export.child import REFUSED, end_with_parent

# The first opset in which Softmax works on one axis and ScatterND, which Gather needs, adds.
_DIFFERENTIABLE = 16
_USUAL = 17
_SIZED = {"images": 1, "tokens": 2, "mask": 2, "shift": 2, "logits": 1}
"""How many axes of these are of sizes that are given."""


def main(argv: list[str]) -> int:
    """Differentiate one file.

    Returns:
        0, or 2 when it cannot be done, with the reason in the last line of standard error.
    """
    end_with_parent()
    source, target, start, sizes = Path(argv[0]), Path(argv[1]), argv[2], list(map(int, argv[3:]))
    try:
        made = differentiate(source.read_bytes(), start, sizes, target.with_suffix(".tmp"))
        target.write_bytes(made)
    except Exception as error:  # neither onnx nor onnx-ad says what it raises
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        sys.stderr.write(f"error: {reason[:300]}\n")
        return REFUSED
    return 0


def differentiate(content: bytes, start: str, sizes: Sequence[int], scratch: Path) -> bytes:
    """The vector-Jacobian product of `logits` by one input, as an ONNX file.

    Args:
        content: an ONNX file to `logits`.
        start: the input, `images` or `shift`.
        sizes: the number of inputs for which it is made, and that of tokens; 0 for any, of which
            some operators have no derivative.
        scratch: where a temporary file may be written.

    Raises:
        Exception: an operator has no rule, or a shape is unknown.
    """
    model = ModelProto.FromString(content)
    for value in (*model.graph.input, *model.graph.output):
        if value.name in _SIZED:
            _fix(value, sizes[: _SIZED[value.name]])
    del model.graph.value_info[:]
    opset = next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    if opset < _DIFFERENTIABLE:
        model = version_converter.convert_version(model, _USUAL)
    model = _folded(model, scratch)
    pad_apart(model)
    own = sorted({f"{node.domain}::{node.op_type}" for node in model.graph.node if node.domain})
    if own:  # whose shapes are unknown, too
        raise ValueError(f"there is no derivative of {', '.join(own)}")
    model = shape_inference.infer_shapes(model, data_prop=True)
    gather_steps(model)
    model = shape_inference.infer_shapes(model, data_prop=True)
    # By its name: the environment of what serves has no such package.
    reverse = importlib.import_module("onnx_ad").reverse
    made = reverse(model, inputs=[start], outputs=["logits"], layout="onnx")
    return made.SerializeToString()


def pad_apart(model: ModelProto) -> None:
    """Give convolutions whose sides are padded unequally, or that leap, a node that pads for them.

    The derivative of onnx-ad leaves it to ONNX to find the pads again from the sizes, as if they
    were equal: right where strides are 2 at most.
    """
    nodes = list[NodeProto]()
    for index, node in enumerate(model.graph.node):
        found = {each.name: list(each.ints) for each in node.attribute}
        pads, half = found.get("pads", []), len(found.get("pads", [])) // 2
        equal = pads[:half] == pads[half:] and max(found.get("strides", [1])) <= 2
        if node.op_type == "Conv" and any(pads) and not equal:
            name = f"pad_apart_{index}"
            whole = np.array([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64)
            model.graph.initializer.append(numpy_helper.from_array(whole, f"{name}_pads"))
            nodes.append(helper.make_node("Pad", [node.input[0], f"{name}_pads"], [name]))
            node.input[0] = name
            [of_node] = [each for each in node.attribute if each.name == "pads"]
            of_node.ints[:] = [0] * len(pads)
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def gather_steps(model: ModelProto) -> None:
    """Gather what slices take in steps, of which onnx-ad has no derivative."""
    known = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    values = (*model.graph.input, *model.graph.value_info)
    shapes = {each.name: each.type.tensor_type.shape.dim for each in values}
    nodes = list[NodeProto]()
    for index, node in enumerate(model.graph.node):
        given = [known.get(name) for name in node.input[1:]]
        bounds = [each.tolist() for each in given if each is not None]
        nodes.append(node)
        if node.op_type != "Slice" or len(bounds) < 4 or set(bounds[3]) == {1}:
            continue
        dims = shapes.get(node.input[0])
        sizes = [0 if dims is None else dims[axis].dim_value for axis in bounds[2]]
        if 0 in sizes:
            continue
        value = nodes.pop().input[0]
        for part, (start, end, axis, step, size) in enumerate(zip(*bounds, sizes, strict=True)):
            taken = np.arange(size, dtype=np.int64)[start:end:step]
            name = f"gather_steps_{index}_{part}"
            model.graph.initializer.append(numpy_helper.from_array(taken, f"{name}_taken"))
            nodes.append(helper.make_node("Gather", [value, f"{name}_taken"], [name], axis=axis))
            value = name
        nodes[-1].output[0] = node.output[0]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _fix(value: ValueInfoProto, sizes: Sequence[int]) -> None:
    """Write the lengths of the first axes."""
    for axis, size in enumerate(sizes):
        dim = value.type.tensor_type.shape.dim[axis]
        if size:
            dim.dim_value = size
        else:
            dim.dim_param = ("batch", "length")[axis]


def _folded(model: ModelProto, scratch: Path) -> ModelProto:
    """The graph after ONNX Runtime has computed what is constant, shapes above all."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(scratch)
    options.log_severity_level = 3
    # Done twice, its new constants would have the names of the old ones.
    left_out = ["MatMulAddFusion"]
    onnxruntime.InferenceSession(model.SerializeToString(), options, disabled_optimizers=left_out)
    return onnx.load(scratch)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

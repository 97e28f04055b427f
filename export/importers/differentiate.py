"""Write the gradient of a graph as another graph, in a process of its own.

`python -m export.importers.differentiate SOURCE TARGET BATCH`, started by
`export.importers.gradient`; onnx-ad is imported nowhere else.
"""

import importlib
import sys
from pathlib import Path

import onnx
import onnxruntime
from onnx import ModelProto, shape_inference, version_converter

from export.child import REFUSED, end_with_parent

_SOFTMAX_BY_AXIS = 13  # the first opset in which Softmax works on one axis
_USUAL = 17


def main(argv: list[str]) -> int:
    """Differentiate one file.

    Returns:
        0, or 2 when it cannot be done, with the reason in the last line of standard error.
    """
    end_with_parent()
    source, target, batch = Path(argv[0]), Path(argv[1]), int(argv[2])
    try:
        target.write_bytes(differentiate(source.read_bytes(), batch, target.with_suffix(".tmp")))
    except Exception as error:  # neither onnx nor onnx-ad says what it raises
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        sys.stderr.write(f"error: {reason[:300]}\n")
        return REFUSED
    return 0


def differentiate(content: bytes, batch: int, scratch: Path) -> bytes:
    """The vector-Jacobian product of `logits` by `images`, as an ONNX file.

    Args:
        content: an ONNX file from `images` to `logits`.
        batch: the number of images for which it is made: shapes must be known.
        scratch: where a temporary file may be written.

    Raises:
        Exception: an operator has no rule, or a shape is unknown.
    """
    model = ModelProto.FromString(content)
    for value in (*model.graph.input, *model.graph.output):
        if value.name in ("images", "logits"):
            value.type.tensor_type.shape.dim[0].dim_value = batch
    del model.graph.value_info[:]
    opset = next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    if opset < _SOFTMAX_BY_AXIS:
        model = version_converter.convert_version(model, _USUAL)
    model = _folded(model, scratch)
    own = sorted({f"{node.domain}::{node.op_type}" for node in model.graph.node if node.domain})
    if own:  # whose shapes are unknown, too
        raise ValueError(f"there is no derivative of {', '.join(own)}")
    model = shape_inference.infer_shapes(model, data_prop=True)
    # By its name: the environment of what serves has no such package.
    reverse = importlib.import_module("onnx_ad").reverse
    made = reverse(model, inputs=["images"], outputs=["logits"], layout="onnx")
    return made.SerializeToString()


def _folded(model: ModelProto, scratch: Path) -> ModelProto:
    """The graph after ONNX Runtime has computed what is constant, shapes above all."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(scratch)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    return onnx.load(scratch)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

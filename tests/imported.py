"""Small graphs as other tools write them, for the tests of imports."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.importers.input_file import read_input
from export.importers.sources import open_source
from export.importers.write import import_graph
from runtimes.artifact import Artifact, open_artifact
from tests.conftest import Once

NAMES = ["ant", "bee", "cat", "dog"]
SIDE = 8


def foreign_graph(
    *,
    layout: str = "nchw",
    dtype: int = TensorProto.FLOAT,
    batch: int | str = "N",
    opset: int = 17,
    softmax: bool = False,
    reads: str = "images",
    side: int | str = SIDE,
) -> onnx.ModelProto:
    """A convolution, an average and a product, called as ours are, to be in their way."""
    random = np.random.default_rng(0)
    weights = {
        "w": random.standard_normal((6, 3, 3, 3), np.float32),
        "head": random.standard_normal((6, len(NAMES)), np.float32),
    }
    start = [helper.make_node("Cast", [reads], ["c"], to=TensorProto.FLOAT)]
    start += [helper.make_node("Transpose", ["c"], ["x"], perm=[0, 3, 1, 2])]
    if layout == "nchw":
        start[1] = helper.make_node("Identity", ["c"], ["x"])
    nodes = [
        *start,
        helper.make_node("Conv", ["x", "w"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("GlobalAveragePool", ["relu"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "head"], ["scores"]),
        helper.make_node("Softmax" if softmax else "Identity", ["scores"], ["logits"]),
    ]
    shape = [batch, 3, side, side] if layout == "nchw" else [batch, side, side, 3]
    graph = helper.make_graph(
        nodes,
        "foreign",
        [helper.make_tensor_value_info(reads, dtype, shape)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, len(NAMES)])],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def import_model(
    folder: Path, model: onnx.ModelProto, given: str | dict[str, Any] = "imagenet", **options: Any
) -> Artifact:
    """Import a graph with an input file."""
    path = folder / "foreign.onnx"
    path.write_bytes(model.SerializeToString())
    if isinstance(given, dict):
        (folder / "input.yaml").write_text("\n".join(f"{key}: {one}" for key, one in given.items()))
        given = str(folder / "input.yaml")
    source, output = open_source(str(path)), folder / "imported"
    options = {"differentiable": False} | options
    return import_graph(
        source, output, name="foreign", labels=NAMES, given=read_input(given), **options
    )


SMALL = {"preset": "imagenet", "size": SIDE, "resize": "null"}


@pytest.fixture(scope="session")
def imported(once: Once) -> Artifact:
    """An artifact of a graph from elsewhere; never change it."""
    folder = once("imported", lambda folder: import_model(folder, foreign_graph(), SMALL))
    return open_artifact(folder / "imported")

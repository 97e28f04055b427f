"""Graphs of int8: how far off, independent of the batch, and made of standard operators."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from torch import nn

from export.engines import open_engine
from export.int8 import quantize_dynamic, quantize_static
from export.samples import Samples

Make = Callable[..., nn.Module]
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 1, 28, 28), dtype=np.uint8)
SAMPLES = Samples(pixels=PIXELS, labels=None, description="noise")


@pytest.fixture(scope="module")
def content(elliptical_graph: bytes) -> bytes:
    return elliptical_graph


@pytest.fixture(scope="module", params=["static", "dynamic"])
def quantised(content: bytes, request: pytest.FixtureRequest) -> bytes:
    if request.param == "dynamic":
        return quantize_dynamic(content)
    return quantize_static(content, SAMPLES)


def test_logits_come_close(make_model: Make, quantised: bytes) -> None:
    feed = SAMPLES.feed()
    expected = make_model()(torch.from_numpy(feed["images"])).numpy()
    logits = open_engine(quantised, "int8")(feed)
    assert 0 < np.abs(logits - expected).max() < 0.1 * np.abs(expected).max()


def test_an_answer_does_not_depend_on_its_batch(quantised: bytes) -> None:
    engine = open_engine(quantised, "int8")
    together = engine(SAMPLES.feed())
    alone = np.concatenate([engine(SAMPLES.feed([index])) for index in range(8)])
    np.testing.assert_allclose(together[:8], alone, atol=1e-4)


def test_all_products_but_the_first_and_last_layers_are_int8(
    content: bytes, quantised: bytes
) -> None:
    graph = onnx.load_from_string(quantised)
    matrices = [t for t in graph.graph.initializer if t.data_type == TensorProto.INT8]
    assert sum(len(t.dims) == 2 for t in matrices) == 4 * 3
    floats = {t.name for t in graph.graph.initializer if t.data_type == TensorProto.FLOAT}
    assert {"patch_embed.proj.weight", "head.weight"} <= floats
    assert len(quantised) < 0.5 * len(content)
    assert graph.metadata_props == onnx.load_from_string(content).metadata_props


def test_what_several_products_share_is_rounded_once(quantised: bytes) -> None:
    kinds = Counter(node.op_type for node in onnx.load_from_string(quantised).graph.node)
    assert kinds["QuantizeLinear"] + kinds["MatMulInteger"] == 12


def test_rounding_of_a_product_is_at_most_half_a_step_of_each_factor() -> None:
    generator = np.random.default_rng(1)
    x, w = generator.normal(size=(6, 8)), generator.normal(size=(8, 3))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["images", "w"], ["logits"], "product")],
        "product",
        [onnx.helper.make_tensor_value_info("images", TensorProto.FLOAT, ["B", 8])],
        [onnx.helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", 3])],
        [onnx.numpy_helper.from_array(w.astype(np.float32), "w")],
    )
    opsets = [onnx.helper.make_opsetid("", 20)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    logits = open_engine(quantize_dynamic(model.SerializeToString()), "int8")(
        {"images": x.astype(np.float32)}
    )
    steps_x, steps_w = np.abs(x).max(1, keepdims=True) / 127, np.abs(w).max(0) / 127
    bound = 0.5 * (steps_x * np.abs(w).sum(0) + np.abs(x).sum(1, keepdims=True) * steps_w)
    assert (np.abs(logits - x @ w) <= bound + 8 * 0.25 * steps_x * steps_w + 1e-5).all()


def test_calibration_needs_samples(content: bytes) -> None:
    with pytest.raises(ValueError, match="calibration must have samples, got none"):
        quantize_static(content, SAMPLES.take(np.arange(0)))


def test_a_graph_without_products_is_refused(content: bytes) -> None:
    graph = onnx.load_from_string(content)
    for node in graph.graph.node:
        if node.op_type == "MatMul":
            node.op_type = "Add"
    with pytest.raises(ValueError, match="a product with constant weights to become int8"):
        quantize_dynamic(graph.SerializeToString())

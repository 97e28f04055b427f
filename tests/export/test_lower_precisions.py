"""Graphs of 16 and 8 bit: how far off, where the types are used, and what is refused."""

from collections import Counter
from collections.abc import Callable
from typing import Literal

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper

from export import int8
from export.graphs import expose, open_graph
from export.half import to_half
from export.int8 import quantize_dynamic, quantize_static
from export.samples import Samples
from runtimes.manifest import Precision
from tests.exported import change_tensor, changed_graph, tiny_model

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 1, 28, 28), dtype=np.uint8)
SAMPLES = Samples(inputs=PIXELS, labels=None, description="noise")

Half = Literal["fp16", "bf16"]
TYPES = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
FORMS: dict[str, Callable[[bytes], bytes]] = {
    "fp16": lambda content: to_half(content, "fp16"),
    "bf16": lambda content: to_half(content, "bf16"),
    "static": lambda content: quantize_static(content, SAMPLES),
    "dynamic": quantize_dynamic,
}


@pytest.fixture(scope="module", params=["static", "dynamic"])
def quantized(elliptical_graph: bytes, request: pytest.FixtureRequest) -> bytes:
    return FORMS[request.param](elliptical_graph)


def factors(graph: onnx.GraphProto) -> list[tuple[str, np.ndarray]]:
    """The name of the unsigned factor (..., K) and the weights (K, M) of every product of int8."""
    weights = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    integers = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "DequantizeLinear"}
    products = [n for n in graph.node if n.op_type in ("MatMul", "MatMulInteger")]
    pairs = [[integers.get(name, name) for name in node.input[:2]] for node in products]
    return [(x, weights[w]) for x, w in pairs if w in weights and weights[w].dtype == np.int8]


def without_vnni(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The product (N, M) as vpmaddubsw computes it: sums of two products saturate at 16 bit."""
    products = x.astype(np.int32)[:, :, None] * w.astype(np.int32)  # (N, K, M)
    pairs = products[:, ::2] + products[:, 1::2]
    return np.clip(pairs, -(2**15), 2**15 - 1).sum(1)


def assert_exact_without_vnni(quantized: bytes) -> None:
    pairs = factors(onnx.load_from_string(quantized).graph)
    assert len(pairs) == 4 * 3
    given = open_graph(expose(quantized, [name for name, _ in pairs]), "int8").outputs(
        SAMPLES.feed(range(4))
    )
    for name, w in pairs:
        x = given[name].reshape(-1, len(w))
        np.testing.assert_array_equal(without_vnni(x, w), (x @ w.astype(np.float32)).astype(int))


@pytest.mark.parametrize("form", ["static", "dynamic"])
def test_products_of_7_bit_weights_alone_are_exact_on_processors_without_vnni(
    elliptical_graph: bytes, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_exact_without_vnni(FORMS[form](elliptical_graph))
    largest = np.full((2, 1), int8._WEIGHT_LEVELS)
    for sign in (1, -1):
        assert abs(without_vnni(np.array([[255, 255]]), sign * largest)) == 2 * 255 * largest[0]
    monkeypatch.setattr(int8, "_WEIGHT_LEVELS", 127)
    with pytest.raises(AssertionError, match="Arrays are not equal"):
        assert_exact_without_vnni(FORMS[form](elliptical_graph))


@pytest.mark.parametrize(
    ("form", "precision", "tolerance"),
    [
        ("fp16", "fp16", 5e-3),
        pytest.param("bf16", "bf16", 5e-2, marks=pytest.mark.bf16),
        ("static", "int8", 0.1),
        ("dynamic", "int8", 0.1),
    ],
)
def test_logits_come_close(
    elliptical_graph: bytes, form: str, precision: Precision, tolerance: float
) -> None:
    feed = SAMPLES.feed()
    expected = tiny_model()(torch.from_numpy(feed["images"])).numpy()
    logits = open_graph(FORMS[form](elliptical_graph), precision)(feed)
    assert logits.dtype == np.float32
    assert 0 < np.abs(logits - expected).max() < tolerance * np.abs(expected).max()


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_every_weight_and_every_step_is_half(elliptical_graph: bytes, precision: Half) -> None:
    before = onnx.load_from_string(elliptical_graph)
    graph = onnx.load_from_string(to_half(elliptical_graph, precision))
    kinds = {tensor.data_type for tensor in graph.graph.initializer}
    assert kinds == {TYPES[precision], TensorProto.INT64}
    extra = Counter(node.op_type for node in graph.graph.node)
    extra.subtract(Counter(node.op_type for node in before.graph.node))
    assert {name: count for name, count in extra.items() if count} == {"Cast": 2}
    for value in (*graph.graph.input, *graph.graph.output):
        assert value.type.tensor_type.elem_type == TensorProto.FLOAT
    assert graph.metadata_props == before.metadata_props


def test_weights_beyond_the_range_are_the_largest_number(elliptical_graph: bytes) -> None:
    content = changed_graph(elliptical_graph, change_tensor("head.weight", lambda w: w * 1e9))
    half = onnx.load_from_string(to_half(content, "fp16"))
    head = next(t for t in half.graph.initializer if t.name.startswith("head.weight"))
    assert numpy_helper.to_array(head).max() == np.finfo(np.float16).max


def test_an_answer_does_not_depend_on_its_batch(quantized: bytes) -> None:
    graph = open_graph(quantized, "int8")
    together = graph(SAMPLES.feed())
    alone = np.concatenate([graph(SAMPLES.feed([index])) for index in range(8)])
    np.testing.assert_allclose(together[:8], alone, atol=1e-4)


def test_all_products_but_the_first_and_last_layers_are_int8(
    elliptical_graph: bytes, quantized: bytes
) -> None:
    graph = onnx.load_from_string(quantized)
    matrices = [t for t in graph.graph.initializer if t.data_type == TensorProto.INT8]
    assert sum(len(t.dims) == 2 for t in matrices) == 4 * 3
    floats = {t.name for t in graph.graph.initializer if t.data_type == TensorProto.FLOAT}
    assert {"patch_embed.proj.weight", "head.weight"} <= floats
    assert len(quantized) < 0.5 * len(elliptical_graph)
    assert graph.metadata_props == onnx.load_from_string(elliptical_graph).metadata_props
    kinds = Counter(node.op_type for node in graph.graph.node)
    assert kinds["QuantizeLinear"] + kinds["MatMulInteger"] == 12  # what is shared is rounded once


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
    logits = open_graph(quantize_dynamic(model.SerializeToString()), "int8")(
        {"images": x.astype(np.float32)}
    )
    steps_x, steps_w = np.abs(x).max(1, keepdims=True) / 127, np.abs(w).max(0) / 64
    bound = 0.5 * (steps_x * np.abs(w).sum(0) + np.abs(x).sum(1, keepdims=True) * steps_w)
    assert (np.abs(logits - x @ w) <= bound + 8 * 0.25 * steps_x * steps_w + 1e-5).all()


def test_neither_samples_nor_products_are_refused(elliptical_graph: bytes) -> None:
    with pytest.raises(ValueError, match="calibration must have samples, got none"):
        quantize_static(elliptical_graph, SAMPLES.take(np.arange(0)))
    graph = onnx.load_from_string(elliptical_graph)
    for node in graph.graph.node:
        if node.op_type == "MatMul":
            node.op_type = "Add"
    with pytest.raises(ValueError, match="a product with constant weights to become int8"):
        quantize_dynamic(graph.SerializeToString())

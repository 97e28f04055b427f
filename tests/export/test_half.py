"""Graphs of 16 bit: where the type is used, what guards a division, and what is refused."""

from collections import Counter
from collections.abc import Callable
from typing import Literal

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper
from torch import nn

import models
from export import graphs
from export.graphs import open_graph
from export.onnx import to_onnx
from export.precision.half import to_half

Make = Callable[..., nn.Module]
Half = Literal["fp16", "bf16"]
EXAMPLE = torch.zeros(2, 1, 28, 28)
TYPES = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


@pytest.fixture(scope="module")
def content(elliptical_graph: bytes) -> bytes:
    return elliptical_graph


def images(count: int = 5) -> np.ndarray:
    return np.random.default_rng(0).random((count, 1, 28, 28), np.float32)


@pytest.mark.parametrize("precision", ["fp16", pytest.param("bf16", marks=pytest.mark.bf16)])
def test_logits_come_close(make_model: Make, content: bytes, precision: Half) -> None:
    expected = make_model()(torch.from_numpy(images())).numpy()
    logits = open_graph(to_half(content, precision), precision)({"images": images()})
    assert logits.dtype == np.float32
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    assert 0 < error < {"fp16": 5e-3, "bf16": 5e-2}[precision]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_every_weight_and_every_step_is_half(content: bytes, precision: Half) -> None:
    graph = onnx.load_from_string(to_half(content, precision))
    kinds = {tensor.data_type for tensor in graph.graph.initializer}
    assert kinds == {TYPES[precision], TensorProto.INT64}
    extra = Counter(node.op_type for node in graph.graph.node)
    extra.subtract(Counter(node.op_type for node in onnx.load_from_string(content).graph.node))
    assert {name: count for name, count in extra.items() if count} == {"Cast": 2}
    for value in (*graph.graph.input, *graph.graph.output):
        assert value.type.tensor_type.elem_type == TensorProto.FLOAT
    assert graph.metadata_props == onnx.load_from_string(content).metadata_props


def test_an_all_zero_m_becomes_ones_in_half_precision(make_model: Make) -> None:
    model = make_model()
    for name, parameter in model.named_parameters():
        if name.endswith("attn.qkv.weight"):
            parameter[2 * parameter.shape[1] :] = 0
        if name.endswith("attn.qkv.bias"):
            parameter.fill_(0.3)
    graph = to_half(to_onnx(model, EXAMPLE, {}), "fp16")
    logits = open_graph(graph, "fp16")({"images": images()})
    expected = model(torch.from_numpy(images())).numpy()
    np.testing.assert_allclose(logits, expected, atol=0.02 * np.abs(expected).max())


def test_an_operator_that_knows_only_float32_keeps_it() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "seq_len": 9, "embed_dim": 16, "num_heads": 2, "depth": 2}
    model = models.build("lra_transformer_elliptical", estimator="consistent", **sizes).eval()
    tokens, mask = (
        torch.randint(0, 20, (3, 9)),
        torch.arange(9)[None] < torch.tensor([[9], [4], [1]]),
    )
    content = to_onnx(model, (tokens, mask), {})
    feed = {"tokens": tokens.numpy(), "mask": mask.numpy()}
    logits = open_graph(to_half(content, "fp16"), "fp16")(feed)
    expected = open_graph(content, "fp32")(feed)
    np.testing.assert_allclose(logits, expected, atol=5e-3)


def test_weights_beyond_the_range_are_the_largest_number(content: bytes) -> None:
    graph = onnx.load_from_string(content)
    head = next(t for t in graph.graph.initializer if t.name == "head.weight")
    values = numpy_helper.to_array(head).copy()
    values[0, 0] = 1e6
    head.CopyFrom(numpy_helper.from_array(values, head.name))
    half = onnx.load_from_string(to_half(graph.SerializeToString(), "fp16"))
    head = next(t for t in half.graph.initializer if t.name.startswith("head.weight"))
    assert numpy_helper.to_array(head).max() == np.finfo(np.float16).max


def test_bf16_is_refused_where_nothing_executes_it(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs.openvino_runtime, "missing", lambda: "it is not installed")
    with pytest.raises(ValueError, match="bf16 is measured on a runtime that executes it"):
        open_graph(to_half(content, "bf16"), "bf16")


def test_bf16_is_refused_where_the_processor_does_not_execute_it(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "_has_cuda", lambda: False)
    monkeypatch.setattr(graphs.openvino_runtime, "able_to_run", lambda precision: False)
    message = r"bf16 is measured on a runtime that executes it \(OpenVINO, CUDA\): this processor"
    with pytest.raises(ValueError, match=message):
        open_graph(to_half(content, "bf16"), "bf16")

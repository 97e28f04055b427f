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

from export.graphs import open_graph
from export.half import to_half

Make = Callable[..., nn.Module]
Half = Literal["fp16", "bf16"]
TYPES = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


def images(count: int = 5) -> np.ndarray:
    return np.random.default_rng(0).random((count, 1, 28, 28), np.float32)


@pytest.mark.parametrize("precision", ["fp16", pytest.param("bf16", marks=pytest.mark.bf16)])
def test_logits_come_close(make_model: Make, elliptical_graph: bytes, precision: Half) -> None:
    expected = make_model()(torch.from_numpy(images())).numpy()
    logits = open_graph(to_half(elliptical_graph, precision), precision)({"images": images()})
    assert logits.dtype == np.float32
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    assert 0 < error < {"fp16": 5e-3, "bf16": 5e-2}[precision]


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
    graph = onnx.load_from_string(elliptical_graph)
    head = next(t for t in graph.graph.initializer if t.name == "head.weight")
    values = numpy_helper.to_array(head).copy()
    values[0, 0] = 1e6
    head.CopyFrom(numpy_helper.from_array(values, head.name))
    half = onnx.load_from_string(to_half(graph.SerializeToString(), "fp16"))
    head = next(t for t in half.graph.initializer if t.name.startswith("head.weight"))
    assert numpy_helper.to_array(head).max() == np.finfo(np.float16).max

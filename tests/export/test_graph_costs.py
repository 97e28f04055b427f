import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import models
from export.graph_costs import operator_costs, weight_types
from export.half import to_half
from export.int8 import quantize_dynamic, quantize_static
from export.onnx import to_onnx
from export.samples import Samples
from runtimes.artifact import Artifact
from runtimes.manifest import ONNX
from tests.exported import tiny_model


def counted(model: nn.Module, *inputs: torch.Tensor) -> int:
    # torch does not count its fused attention of the CPU.
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(*inputs)
    return counter.get_total_flops()


IMAGE = {"images": np.zeros((1, 1, 28, 28), np.float32)}


def text(length: int) -> dict[str, np.ndarray]:
    return {"tokens": np.zeros((1, length), np.int64), "mask": np.ones((1, length), np.bool_)}


def work(content: bytes, feed: dict[str, np.ndarray]) -> int:
    return sum(cost.flops for cost in operator_costs(content, feed))


def test_work_of_the_products_is_what_torch_counts(dot_graph: bytes) -> None:
    costs = {cost.name: cost for cost in operator_costs(dot_graph, IMAGE)}
    assert work(dot_graph, IMAGE) == counted(tiny_model("deit_tiny"), torch.zeros(1, 1, 28, 28))
    assert costs["Softmax"].count == 3 and costs["Softmax"].flops == 0
    assert next(iter(costs)) == "MatMul"


@pytest.mark.slow
def test_the_work_of_a_folded_transject_grows_with_its_length(text_artifact: Artifact) -> None:
    for N in (5, 12):
        d, E, depth = 16, 2, 2  # each expert rotates the tokens twice
        expected = 2 * (N * d * d + depth * (2 * E * N * d * d + 2 * N * d * d))
        assert work(text_artifact.read(ONNX), text(N)) == pytest.approx(expected, rel=0.1)


@pytest.mark.slow
def test_the_work_of_a_token_model_is_that_of_its_products() -> None:
    sizes = {"vocab_size": 20, "seq_len": 40, "embed_dim": 16, "depth": 1}
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    ordinary = models.build("lra_transformer", **sizes, num_heads=2).eval()
    content = to_onnx(ordinary, (tokens, torch.ones_like(tokens, dtype=torch.bool)), {})
    for length in (10, 40):
        expected = counted(ordinary, torch.zeros(1, length, dtype=torch.int64))
        # The graph sums with products.
        assert work(content, text(length)) == pytest.approx(expected, rel=0.01)


def test_lower_precisions_do_the_same_work(dot_graph: bytes) -> None:
    pixels = np.zeros((1, 1, 28, 28), np.uint8)
    static = quantize_static(dot_graph, Samples(inputs=pixels, labels=None, description=""))
    halves = [to_half(dot_graph, "fp16"), to_half(dot_graph, "bf16")]
    for graph in (*halves, static, quantize_dynamic(dot_graph)):
        assert work(graph, IMAGE) == work(dot_graph, IMAGE)


def test_weights_are_counted_by_their_type(dot_graph: bytes) -> None:
    numbers, size = weight_types(dot_graph)["float"]
    assert size == 4 * numbers
    half = weight_types(to_half(dot_graph, "bf16"))
    assert half["bfloat16"] == (numbers, 2 * numbers) and "float" not in half
    assert next(iter(weight_types(quantize_dynamic(dot_graph)))) == "int8"


def test_a_constant_without_a_type_is_refused(dot_graph: bytes) -> None:
    graph = onnx.load_from_string(dot_graph)
    graph.graph.initializer[0].data_type = 99
    with pytest.raises(ValueError, match="must have a type of onnx, got 99"):
        weight_types(graph.SerializeToString())

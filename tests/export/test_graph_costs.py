from collections.abc import Callable

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

Make = Callable[..., nn.Module]


def counted(model: nn.Module, *inputs: torch.Tensor) -> int:
    # torch does not count its fused attention of the CPU.
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(*inputs)
    return counter.get_total_flops()


def test_work_of_the_products_is_what_torch_counts(make_model: Make, dot_graph: bytes) -> None:
    costs = {cost.name: cost for cost in operator_costs(dot_graph)}
    expected = counted(make_model("deit_tiny"), torch.zeros(1, 1, 28, 28))
    assert sum(cost.flops for cost in costs.values()) == expected
    assert costs["Softmax"].count == 3 and costs["Softmax"].flops == 0
    assert next(iter(costs)) == "MatMul"


def token_graph(model: nn.Module) -> bytes:
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    return to_onnx(model, (tokens, torch.ones_like(tokens, dtype=torch.bool)), {})


def transject_work(length: int, *, depth: int, long: bool) -> int:
    """Of two experts, 16 wide: each rotates the tokens twice, or by one product of its matrices."""
    N, d, E = length, 16, 2
    experts = E * N * d * d + E * d**3 if long else 2 * E * N * d * d
    return 2 * (N * d * d + depth * (experts + 2 * N * d * d))


def test_the_work_of_a_folded_transject_grows_with_its_length(text_artifact: Artifact) -> None:
    content = text_artifact.read(ONNX)
    for length in (5, 12):
        flops = sum(cost.flops for cost in operator_costs(content, length=length))
        expected = transject_work(length, depth=2, long=False)
        assert flops == pytest.approx(expected, rel=0.1)


@pytest.mark.slow
def test_the_work_of_a_token_model_is_that_of_its_products() -> None:
    sizes = {"vocab_size": 20, "seq_len": 40, "embed_dim": 16, "depth": 1}
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    inputs = tokens, torch.ones_like(tokens, dtype=torch.bool)
    ordinary = models.build("lra_transformer", **sizes, num_heads=2).eval()
    content = to_onnx(ordinary, inputs, {})
    for length in (10, 40):
        flops = sum(cost.flops for cost in operator_costs(content, length=length))
        expected = counted(ordinary, torch.zeros(1, length, dtype=torch.int64))
        assert flops == pytest.approx(expected, rel=0.01)  # the graph sums with products
    content = to_onnx(models.build("transject", **sizes, num_experts=2).eval(), inputs, {})
    flops = sum(cost.flops for cost in operator_costs(content, length=10))
    assert flops == pytest.approx(transject_work(10, depth=1, long=True), rel=0.1)


def test_lower_precisions_do_the_same_work(dot_graph: bytes) -> None:
    expected = sum(cost.flops for cost in operator_costs(dot_graph))
    pixels = np.zeros((1, 1, 28, 28), np.uint8)
    static = quantize_static(dot_graph, Samples(pixels=pixels, labels=None, description=""))
    for graph in (to_half(dot_graph, "fp16"), static, quantize_dynamic(dot_graph)):
        assert sum(cost.flops for cost in operator_costs(graph)) == expected


def test_weights_are_counted_by_their_type(make_model: Make, dot_graph: bytes) -> None:
    numbers, size = weight_types(dot_graph)["float"]
    assert size == 4 * numbers
    half = weight_types(to_half(dot_graph, "bf16"))
    assert half["bfloat16"] == (numbers, 2 * numbers) and "float" not in half
    assert next(iter(weight_types(quantize_dynamic(dot_graph)))) == "int8"


def test_a_constant_without_a_type_and_a_product_of_unknown_shape_are_refused(
    dot_graph: bytes,
) -> None:
    graph = onnx.load_from_string(dot_graph)
    graph.graph.initializer[0].data_type = 99
    with pytest.raises(ValueError, match="must have a type of onnx, got 99"):
        weight_types(graph.SerializeToString())
    graph = onnx.load_from_string(dot_graph)
    graph.graph.node[0].op_type = "Size"
    reshape = next(node for node in graph.graph.node if node.op_type == "Reshape")
    reshape.input[1] = graph.graph.node[0].output[0]
    with pytest.raises(ValueError, match="graph must tell the shape of every product"):
        operator_costs(graph.SerializeToString())

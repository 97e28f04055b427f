from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from export.graphs import open_graph
from export.half import to_half
from export.onnx import check_graph, to_onnx
from export.torch_files import to_torchscript
from tests.exported import change_tensor, tiny_model

EXAMPLE = torch.zeros(2, 1, 28, 28)


def run(content: bytes, images: Tensor) -> np.ndarray:
    return open_graph(content, "fp32")({"images": images.numpy()})


def noise(batch_size: int) -> Tensor:
    return torch.rand(batch_size, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def test_a_model_that_draws_m_afresh_is_refused() -> None:
    for export in (lambda model: to_onnx(model, EXAMPLE, {}), lambda m: to_torchscript(m, EXAMPLE)):
        with pytest.raises(ValueError, match="must not draw m afresh .* give it a metric_seed"):
            export(tiny_model(estimator="random"))


def test_one_layer_whose_m_is_drawn_once_is_exported_without_a_word(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    config = {"elliptical_layers": (3,), "estimator": "random", "metric_seed": 0}
    model, images = tiny_model(**config, distilled=True), noise(3)
    before = [type(module) for module in model.modules()]
    with caplog.at_level("WARNING"):
        logits = run(to_onnx(model, EXAMPLE, {}), images)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert "".join(capfd.readouterr()) == ""
    assert [type(module) for module in model.modules()] == before
    np.testing.assert_allclose(logits, model(images).numpy(), atol=1e-4)


def test_an_all_zero_m_becomes_ones_in_the_graph(elliptical_graph: bytes) -> None:
    counterpart, images = tiny_model("deit_tiny"), noise(3)
    model = onnx.load_from_string(elliptical_graph)
    nodes = {name: node for node in model.graph.node for name in node.output}
    for layer in range(3):
        name = f"blocks.{layer}.attn.qkv"
        weight, bias = (counterpart.get_parameter(f"{name}.{each}") for each in ("weight", "bias"))
        weight[2 * weight.shape[1] :] = 0  # every value is the bias, in every layer
        bias.fill_(0.3)
        add = next(node for node in model.graph.node if f"{name}.bias" in node.input)
        for key, values in ((add.input[1], bias), (nodes[add.input[0]].input[1], weight.T)):
            change_tensor(key, lambda _, values=values: values.numpy().copy())(model)
    content, expected = model.SerializeToString(), counterpart(images).numpy()
    np.testing.assert_allclose(run(content, images), expected, atol=1e-4)
    half = open_graph(to_half(content, "fp16"), "fp16")({"images": images.numpy()})
    np.testing.assert_allclose(half, expected, atol=0.02 * np.abs(expected).max())


def test_the_graph_depends_on_m(elliptical_graph: bytes) -> None:
    """With m forced to ones inside the graph, and only then, it is the dot-product counterpart."""
    images = noise(8)
    counterpart = tiny_model("deit_tiny")(images).numpy()
    assert np.abs(run(elliptical_graph, images) - counterpart).max() > 1e-2
    graph = onnx.load_from_string(elliptical_graph)
    floors = {node.input[1] for node in graph.graph.node if node.op_type == "Clip"}
    assert floors
    for name in floors:
        change_tensor(name, lambda _: np.array(1e9))(graph)
    np.testing.assert_allclose(run(graph.SerializeToString(), images), counterpart, atol=1e-4)


def test_m_costs_seven_small_nodes_a_layer(dot_graph: bytes, elliptical_graph: bytes) -> None:
    dot = onnx.load_from_string(dot_graph)
    graph = onnx.load_from_string(elliptical_graph)
    extra = Counter(n.op_type for n in graph.graph.node)
    extra.subtract(Counter(n.op_type for n in dot.graph.node))
    layers = 2  # the first of three has no previous values
    expected: Counter[str] = Counter(
        ("Sub", "Abs", "MatMul", "Clip", "ReduceMax", "Div", "Mul") * layers
    )
    expected["Reshape"] = 2 * layers  # of m alone, to heads and back
    assert {name: count for name, count in extra.items() if count} == expected


def test_file_is_plain_and_small(elliptical_graph: bytes) -> None:
    graph = onnx.load_from_string(elliptical_graph)
    assert [(entry.domain, entry.version) for entry in graph.opset_import] == [("", 20)]
    assert {entry.key for entry in graph.metadata_props} == {"weights_sha256", "config_sha256"}
    assert not any(node.doc_string or node.metadata_props for node in graph.graph.node)
    assert b".py" not in elliptical_graph
    weights = sum(p.numel() * p.element_size() for p in tiny_model().parameters())
    assert len(elliptical_graph) < weights + 12_000


def fix_batch(graph: onnx.ModelProto) -> None:
    graph.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2


def misname_an_input(graph: onnx.ModelProto) -> None:
    graph.graph.node[-1].input[0] = "nowhere"


@pytest.mark.parametrize(
    ("break_rule", "message"),
    [
        (lambda graph: setattr(graph.graph.node[0], "domain", "com.example"), "standard operators"),
        (lambda graph: setattr(graph.graph.node[0], "op_type", "Loop"), "no control flow, got .'L"),
        (fix_batch, "images must have a dynamic batch"),
        (misname_an_input, "graph must pass the checker of onnx: .*nowhere"),
        (
            change_tensor("head.weight", lambda w: w[:, 1:]),
            "(?s)graph must pass the checker of onnx: .*Gemm",
        ),
    ],
)
def test_a_graph_against_the_rules_is_refused(
    elliptical_graph: bytes, break_rule: Callable[[onnx.ModelProto], None], message: str
) -> None:
    graph = onnx.load_from_string(elliptical_graph)
    break_rule(graph)
    with pytest.raises(ValueError, match=message):
        check_graph(graph)

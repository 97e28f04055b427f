from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from export.onnx import check_graph, to_onnx
from export.torchscript import to_torchscript
from runtimes.onnx import open_session

Make = Callable[..., nn.Module]
EXAMPLE = torch.zeros(2, 1, 28, 28)


def run(content: bytes, images: Tensor) -> np.ndarray:
    session = open_session(content, threads=1)
    return np.asarray(session.run(["logits"], {"images": images.numpy()})[0])


def noise(batch_size: int) -> Tensor:
    return torch.rand(batch_size, 1, 28, 28, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def elliptical(elliptical_graph: bytes) -> bytes:
    return elliptical_graph


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_batch_is_dynamic(make_model: Make, elliptical: bytes, batch_size: int) -> None:
    images = noise(batch_size)
    np.testing.assert_allclose(run(elliptical, images), make_model()(images).numpy(), atol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        {"elliptical_layers": (3,), "distilled": True, "metric_gradient": True},
        pytest.param({"depth": 1}, marks=pytest.mark.slow),
    ],
)
def test_models_with_few_elliptical_layers_are_exported(
    make_model: Make, config: dict[str, Any]
) -> None:
    model, images = make_model(**config), noise(4)
    logits = run(to_onnx(model, EXAMPLE, {}), images)
    np.testing.assert_allclose(logits, model(images).numpy(), atol=1e-4)


def test_a_model_that_draws_m_afresh_is_refused(make_model: Make) -> None:
    for export in (lambda model: to_onnx(model, EXAMPLE, {}), lambda m: to_torchscript(m, EXAMPLE)):
        with pytest.raises(ValueError, match="must not draw m afresh .* give it a metric_seed"):
            export(make_model(estimator="random"))


def test_a_model_whose_m_is_drawn_once_is_exported_without_a_word(
    make_model: Make, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    model, images = make_model(estimator="random", metric_seed=0), noise(3)
    with caplog.at_level("WARNING"):
        logits = run(to_onnx(model, EXAMPLE, {}), images)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert "".join(capfd.readouterr()) == ""
    np.testing.assert_allclose(logits, model(images).numpy(), atol=1e-4)


@pytest.mark.parametrize("scaling", ["max", pytest.param("mean", marks=pytest.mark.slow)])
def test_an_all_zero_m_becomes_ones_in_the_graph(make_model: Make, scaling: str) -> None:
    model, images = make_model(scaling=scaling), noise(3)
    for name, parameter in model.named_parameters():
        if name.endswith("attn.qkv.weight"):
            parameter[2 * parameter.shape[1] :] = 0  # every value is the bias, in every layer
        if name.endswith("attn.qkv.bias"):
            parameter.fill_(0.3)
    counterpart = make_model("deit_tiny")
    counterpart.load_state_dict(model.state_dict())
    logits = run(to_onnx(model, EXAMPLE, {}), images)
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits, counterpart(images).numpy(), atol=1e-4)


def test_the_graph_depends_on_m(make_model: Make, elliptical: bytes) -> None:
    """With m forced to ones inside the graph, and only then, it is the dot-product counterpart."""
    images = noise(8)
    counterpart = make_model("deit_tiny")(images).numpy()
    assert np.abs(run(elliptical, images) - counterpart).max() > 1e-2
    graph = onnx.load_from_string(elliptical)
    floors = {node.input[1] for node in graph.graph.node if node.op_type == "Clip"}
    assert floors
    for tensor in graph.graph.initializer:
        if tensor.name in floors:
            tensor.CopyFrom(numpy_helper.from_array(np.array(1e9, np.float32), tensor.name))
    np.testing.assert_allclose(run(graph.SerializeToString(), images), counterpart, atol=1e-4)


def test_m_costs_seven_small_nodes_a_layer(dot_graph: bytes, elliptical: bytes) -> None:
    dot = onnx.load_from_string(dot_graph)
    graph = onnx.load_from_string(elliptical)
    extra = Counter(n.op_type for n in graph.graph.node)
    extra.subtract(Counter(n.op_type for n in dot.graph.node))
    layers = 2  # the first of three has no previous values
    expected: Counter[str] = Counter(
        ("Sub", "Abs", "MatMul", "Clip", "ReduceMax", "Div", "Mul") * layers
    )
    expected["Reshape"] = 2 * layers  # of m alone, to heads and back
    assert {name: count for name, count in extra.items() if count} == expected


def test_file_is_plain_and_small(make_model: Make, elliptical: bytes) -> None:
    graph = onnx.load_from_string(elliptical)
    assert [(entry.domain, entry.version) for entry in graph.opset_import] == [("", 20)]
    assert {entry.key: entry.value for entry in graph.metadata_props} == {
        "weights_sha256": "w",
        "config_sha256": "c",
    }
    assert not any(node.doc_string or node.metadata_props for node in graph.graph.node)
    assert b".py" not in elliptical
    weights = sum(p.numel() * p.element_size() for p in make_model().parameters())
    assert len(elliptical) < weights + 12_000


def test_the_same_weights_give_the_same_bytes_and_stay_as_they_are(
    make_model: Make, elliptical: bytes
) -> None:
    model, metadata = make_model(), {"weights_sha256": "w", "config_sha256": "c"}
    before = [type(module) for module in model.modules()]
    assert to_onnx(model, EXAMPLE, metadata) == elliptical
    assert [type(module) for module in model.modules()] == before


def change_domain(graph: onnx.ModelProto) -> None:
    graph.graph.node[0].domain = "com.example"


def add_control_flow(graph: onnx.ModelProto) -> None:
    graph.graph.node[0].op_type = "Loop"


def fix_batch(graph: onnx.ModelProto) -> None:
    graph.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2


def misname_an_input(graph: onnx.ModelProto) -> None:
    graph.graph.node[-1].input[0] = "nowhere"


def shorten_the_head(graph: onnx.ModelProto) -> None:
    head = next(t for t in graph.graph.initializer if t.name == "head.weight")
    head.CopyFrom(numpy_helper.from_array(np.zeros((5, 31), np.float32), head.name))


@pytest.mark.parametrize(
    ("break_rule", "message"),
    [
        (change_domain, "standard operators only"),
        (add_control_flow, "no control flow, got .'Loop'"),
        (fix_batch, "images must have a dynamic batch"),
        (misname_an_input, "graph must pass the checker of onnx: .*nowhere"),
        (shorten_the_head, "(?s)graph must pass the checker of onnx: .*Gemm"),
    ],
)
def test_a_graph_against_the_rules_is_refused(
    elliptical: bytes, break_rule: Callable[[onnx.ModelProto], None], message: str
) -> None:
    graph = onnx.load_from_string(elliptical)
    break_rule(graph)
    with pytest.raises(ValueError, match=message):
        check_graph(graph)

"""Graphs for verifiers: few operators, a batch of one, the same answers."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.verifiable import PRIMITIVE, metric_of, verifiable
from runtimes.artifact import Artifact
from runtimes.onnx import open_session
from tests.exported import LABELS


def answers(content: bytes, images: np.ndarray) -> np.ndarray:
    session = open_session(content, threads=1)
    return np.concatenate(
        [np.asarray(session.run(["logits"], {"images": x[None]})[0]) for x in images]
    )


def graph_of(*nodes: onnx.NodeProto, opset: int = 20, **weights: np.ndarray) -> bytes:
    """A graph from images (B, 4) to logits (B, 4)."""
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4])
        for name in ("images", "logits")
    ]
    tensors = [numpy_helper.from_array(one.astype(np.float32), key) for key, one in weights.items()]
    graph = helper.make_graph(list(nodes), "made", values[:1], values[1:], tensors)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()


def test_a_transformer_is_written_in_primitive_operators_and_answers_alike(
    elliptical_graph: bytes, imported: Artifact
) -> None:
    for content, shape in ((elliptical_graph, (3, 1, 28, 28)), (imported.graph(), (3, 3, 8, 8))):
        written = verifiable(content)
        graph = onnx.load_from_string(written).graph
        assert {node.op_type for node in graph.node} <= PRIMITIVE
        assert [dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim] == [
            1,
            *shape[1:],
        ]
        images = np.random.default_rng(0).random(shape, np.float32)
        assert np.allclose(answers(written, images), answers(content, images), rtol=1e-4, atol=1e-4)


def test_a_frozen_metric_is_that_of_its_image_alone(elliptical_graph: bytes) -> None:
    images = np.random.default_rng(0).random((2, 1, 28, 28), np.float32)
    metric = metric_of(elliptical_graph, images[0])
    assert {name: value.shape for name, value in metric.items()} == dict.fromkeys(
        ("m_2", "m_3"), (1, 1, 2, 16)
    )
    frozen = verifiable(elliptical_graph, metric)
    own, other = np.abs(answers(frozen, images) - answers(elliptical_graph, images)).max(1)
    assert own < 1e-4 < 1e-2 < other
    names = {name for node in onnx.load_from_string(frozen).graph.node for name in node.output}
    assert not names & metric.keys() and len(answers(frozen, images)[0]) == len(LABELS)


@pytest.mark.parametrize(
    ("node", "opset"),
    [
        (helper.make_node("Gelu", ["images"], ["logits"]), 20),
        (helper.make_node("Gelu", ["images"], ["logits"], approximate="tanh"), 20),
        (
            helper.make_node("LayerNormalization", ["images", "a", "b"], ["logits"], epsilon=1e-3),
            20,
        ),
        (helper.make_node("LayerNormalization", ["images", "a"], ["logits"]), 17),
        (helper.make_node("Cast", ["images"], ["logits"], to=TensorProto.FLOAT), 20),
    ],
)
def test_composed_operators_are_written_out(node: onnx.NodeProto, opset: int) -> None:
    a, b = np.random.default_rng(1).standard_normal((2, 4))
    content = graph_of(node, opset=opset, a=a, b=b)
    images = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32) * 3
    assert np.allclose(answers(verifiable(content), images), answers(content, images), atol=1e-5)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (helper.make_node("Sign", ["images"], ["logits"]), "float32 .* has Sign"),
        (helper.make_node("LayerNormalization", ["images", "a"], ["logits"], axis=0), "last axis"),
    ],
)
def test_others_are_refused_by_name(node: onnx.NodeProto, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        verifiable(graph_of(node, a=np.ones(4)))
    with pytest.raises(ValueError, match="name its m"):
        metric_of(graph_of(node, a=np.ones(4)), np.zeros(4, np.float32))

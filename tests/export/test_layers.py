"""What the layers of a graph give, m included, is what the model's layers give."""

import numpy as np
import pytest
import torch

import models
from export.graphs import error_table, expose, layer_errors, open_graph
from export.half import to_half
from export.onnx import to_onnx
from models.analysis.observation import observe
from runtimes.artifact import Artifact
from runtimes.probe import read_probe
from runtimes.torch_model import load_torch_model
from tests.exported import tiny_model

EXAMPLE = torch.zeros(2, 1, 28, 28)
FORMS = [
    {"scaling": "mean", "metric_gradient": True},
    {"scaling": "none", "delta": 2.0},
    {"estimator": "consistent", "scaling": "none"},
    {"name": "fan_tiny_elliptical", "patch_size": 4},
]


@pytest.mark.parametrize(
    "form", [{}, *(pytest.param(form, marks=pytest.mark.slow) for form in FORMS)]
)
def test_m_of_the_graph_is_m_of_the_model(elliptical_graph: bytes, form: dict) -> None:
    model, images = tiny_model(**form), torch.rand(3, 1, 28, 28)
    content = to_onnx(model, EXAMPLE, {}) if form else elliptical_graph
    given = open_graph(expose(content, ["m_2", "m_3"]), "fp32").outputs({"images": images.numpy()})
    np.testing.assert_allclose(given["logits"], model(images), atol=1e-4)
    first, *others = [layer.metric() for layer in observe(model, images).layers]
    assert first is None
    for name, m in zip(("m_2", "m_3"), others, strict=True):
        assert m is not None and m.std() > 0.01
        np.testing.assert_allclose(given[name][:, 0], m, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{}, *(pytest.param(each, marks=pytest.mark.slow) for each in FORMS[1:3])]
)
def test_m_of_a_token_graph_leaves_padding_out_and_half_keeps_what_needs_more(
    options: dict[str, object],
) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "seq_len": 9, "embed_dim": 16, "num_heads": 2, "depth": 2}
    model = models.build("lra_transformer_elliptical", **sizes, **options).eval()
    tokens = torch.randint(0, 20, (3, 9))
    mask = torch.arange(9)[None] < torch.tensor([9, 4, 1])[:, None]
    content = to_onnx(model, (tokens, mask), {})
    feed = {"tokens": tokens.numpy(), "mask": mask.numpy()}
    given = open_graph(expose(content, ["m_2"]), "fp32").outputs(feed)
    m = observe(model, tokens, mask).layers[1].metric()
    assert m is not None
    np.testing.assert_allclose(given["m_2"][:, 0], m, rtol=1e-4, atol=1e-6)
    half = open_graph(to_half(content, "fp16"), "fp16")(feed)
    np.testing.assert_allclose(half, given["logits"], atol=5e-3)


def test_an_unknown_value_cannot_be_exposed(elliptical_graph: bytes) -> None:
    with pytest.raises(ValueError, match="names must be values of the graph, got 'm_1'"):
        expose(elliptical_graph, ["m_1"])


def test_the_error_begins_in_the_layer_that_is_wrong(elliptical_graph: bytes) -> None:
    wrong = tiny_model()
    wrong.get_submodule("blocks.1.mlp.fc2").get_parameter("weight")[0].add_(0.5)
    feed = {"images": np.random.default_rng(0).random((4, 1, 28, 28), np.float32)}
    errors = layer_errors(wrong, elliptical_graph, "fp32", feed)
    assert list(errors) == ["layer_1", "layer_2", "layer_3", "logits"]
    assert errors["layer_1"] < 1e-5 < 1e-3 < min(errors["layer_2"], errors["logits"])
    assert error_table(errors).splitlines()[2].split()[0] == "layer_2"


def test_layers_of_a_folded_transject_are_compared_without_padding(text_artifact: Artifact) -> None:
    feed, _ = next(read_probe(text_artifact).batches(20))
    assert not feed["mask"].all()
    model = load_torch_model(text_artifact)
    errors = layer_errors(model, text_artifact.read("model.onnx"), "fp32", feed)
    assert list(errors) == ["layer_1", "layer_2", "logits"]
    assert max(errors.values()) < 1e-5

"""Gradients of imported graphs; `make install` brings the package that makes them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    quantize_dynamic,
    quantize_static,
)

from export.importers.differentiate import differentiate
from export.importers.unrounded import without_rounding
from export.inspect import inspect_artifact
from robustness.evaluation import evaluate
from robustness.spec import EvaluationSpec
from robustness.verify import verify
from runtimes.artifact import Artifact
from runtimes.gate import CopyFailure, promise_error, require_copy
from runtimes.gradient import Feed, OnnxGradient
from runtimes.manifest import GRADIENT, RANDOM
from runtimes.registry import open_runtime
from runtimes.torch_model import load_torch_model
from tests.export.importers.test_import import by_hand, image_set
from tests.imported import SIDE, SMALL, foreign_graph, import_model

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "as torch exports it": ({}, {"range": [0, 1]}, {}),
    "one at a time": ({"batch": 1}, {"range": [-1, 1]}, {"scale": 2, "mean": 1}),
    "bytes": ({"layout": "nhwc", "dtype": TensorProto.UINT8}, {}, {"scale": 255}),
    "old probabilities": ({"softmax": True, "opset": 9}, {"range": [0, 1]}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_same_model_in_torch(tmp_path: Path, case: str) -> None:
    options, given, expected = CASES[case]
    model = foreign_graph(**options)
    artifact = import_model(tmp_path, model, given, differentiable=True)
    source = artifact.manifest.source
    assert source is not None and source.gradients is not None, source
    assert (source.gradients.agreement, source.gradients.data) == (1.0, RANDOM)
    assert "gradients" in inspect_artifact(artifact)
    pixels = np.random.default_rng(1).integers(0, 256, (11, 3, SIDE, SIDE)).astype(np.float32) / 255
    labels = torch.arange(11) % 4
    found = []
    for ask in (load_torch_model(artifact), lambda x: by_hand(x, model, **expected)):
        images = torch.from_numpy(pixels).requires_grad_()
        logits = ask(images)
        loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, images)
        found.append((logits.detach().softmax(1), gradient))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


Layer = tuple[onnx.NodeProto, Callable[[torch.Tensor], torch.Tensor]]
WEIGHT = np.random.default_rng(0).normal(size=(3, 3, 3, 3)).astype(np.float32)
BOUNDS = {"starts": [1, 0], "ends": [2**40, 2**40], "axes": [2, 3], "steps": [2, 3]}


def convolution(pads: list[int], stride: int) -> Layer:
    """One of a width of 3, padded above, left, below and right."""
    top, left, bottom, right = pads
    sides, weight = (left, right, top, bottom), torch.from_numpy(WEIGHT)
    node = helper.make_node(
        "Conv", ["images", "weight"], ["y"], pads=pads, strides=[stride, stride]
    )
    pad = torch.nn.functional.pad
    return node, lambda x: torch.conv2d(pad(x, sides), weight, stride=stride)


@pytest.mark.parametrize(
    "layer",
    [
        convolution([0, 0, 1, 1], 2),
        convolution([1, 1, 1, 1], 3),
        convolution([0, 1, 2, 1], 1),
        (helper.make_node("Slice", ["images", *BOUNDS], ["y"]), lambda x: x[:, :, 1::2, ::3]),
    ],
)
def test_what_has_no_derivative_of_its_own_is_written_otherwise(
    layer: Layer, tmp_path: Path
) -> None:
    node, apply = layer
    nodes = [
        node,
        helper.make_node("Tanh", ["y"], ["z"]),
        helper.make_node("ReduceMean", ["z"], ["logits"], axes=[2, 3], keepdims=0),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("images", ["batch", 3, 8, 8]), ("logits", ["batch", 3]))
    ]
    constants = {"weight": WEIGHT, **{name: np.array(each) for name, each in BOUNDS.items()}}
    stored = [numpy_helper.from_array(each, name) for name, each in constants.items()]
    graph = helper.make_graph(nodes, "layer", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    made = differentiate(model.SerializeToString(), "images", [2], tmp_path / "folded.onnx")
    draw = np.random.default_rng(1)
    images = torch.from_numpy(draw.random((2, 3, 8, 8), np.float32)).requires_grad_()
    seed = torch.from_numpy(draw.normal(size=(2, 3)).astype(np.float32))
    (expected,) = torch.autograd.grad(apply(images).tanh().mean((2, 3)), images, seed)
    found = OnnxGradient(made, threads=1).pull({"images": images.detach().numpy()}, seed.numpy())
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)


@pytest.fixture(scope="module")
def differentiable(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("differentiable")
    return import_model(folder, foreign_graph(), SMALL, differentiable=True)


def test_it_is_attacked_with_its_gradients(differentiable: Artifact, tmp_path: Path) -> None:
    attacks = [{"name": name, "eps": ["16/255"]} for name in ("pgd", "fab-t")]
    attacks.append({"name": "torchattacks", "attack": "MIFGSM", "eps": ["16/255"]})
    spec = EvaluationSpec.model_validate({"attacks": attacks})
    report = evaluate(spec, [differentiable], image_set(12), tmp_path)
    found = {each.name: each for each in report.summary.models[0].attacks}
    assert found["pgd"].robust.top1 < 0.7
    assert [each.robust.top1 for each in found.values()] == [e.confirmed for e in found.values()]
    assert report.summary.reliable, report.summary.warnings
    assert any(f"on {RANDOM} alone" in note for note in report.notes)
    assert verify(tmp_path, folders=[differentiable.folder]).confirmed


class _Noise(CalibrationDataReader):
    def __init__(self) -> None:
        shape = (8, 3, SIDE, SIDE)
        self._left = [
            {"images": np.random.default_rng(i).random(shape, np.float32)} for i in (1, 2)
        ]

    def get_next(self) -> dict[str, np.ndarray]:
        return self._left.pop() if self._left else {}


@pytest.mark.parametrize("quantization", ["static", "dynamic", "static, without pairs"])
def test_what_fools_a_copy_without_rounding_fools_int8(tmp_path: Path, quantization: str) -> None:
    plain, small = tmp_path / "plain.onnx", tmp_path / "small.onnx"
    onnx.save(foreign_graph(), plain)
    quantization, _, without = quantization.partition(", ")
    if quantization == "static":
        form = QuantFormat.QOperator if without else QuantFormat.QDQ
        quantize_static(plain, small, _Noise(), per_channel=True, quant_format=form)
    else:
        quantize_dynamic(plain, small, op_types_to_quantize=["MatMul", "Conv"])
    artifact = import_model(tmp_path, onnx.load(small), {"range": [0, 1]}, differentiable=True)
    manifest = artifact.manifest
    assert (manifest.precision, manifest.quantization) == ("int8", quantization)
    assert manifest.source is not None and manifest.source.gradients is not None, manifest.source
    spec = EvaluationSpec.model_validate({"attacks": [{"name": "pgd", "eps": ["32/255"]}]})
    report = evaluate(spec, [artifact], image_set(40), tmp_path / "report")
    [attack] = report.summary.models[0].attacks
    assert attack.confirmed < 0.7
    assert abs(attack.confirmed - attack.robust.top1) <= 0.05
    assert any("without its rounding to 8 bit" in note for note in report.notes)
    assert report.summary.reliable, report.summary.warnings


class _Lost(OnnxGradient):
    """A copy that forgot the sign, or everything, of its gradient."""

    factor = -1.0

    def pull(self, feed: Feed, seed: np.ndarray) -> np.ndarray:
        return super().pull(feed, seed) * np.float32(self.factor)


def test_a_copy_that_is_another_function_is_refused(differentiable: Artifact) -> None:
    served = open_runtime(differentiable, threads=1).predict
    images = {"images": np.random.default_rng(0).random((8, 3, SIDE, SIDE), np.float32)}
    content = differentiable.read(GRADIENT)

    def check(
        copy: OnnxGradient, answers: Callable[[Feed], np.ndarray], *, rounds: bool = False
    ) -> None:
        require_copy(copy, answers, [images], images, data="these", rounds=rounds)

    copy, lost = (kind(content, threads=1) for kind in (OnnxGradient, _Lost))
    check(copy, served)
    assert promise_error(copy, served, images) < 0.1
    for factor, message in ((-1, "is off what the served graph does by (199|2..)%"), (0, "by inf")):
        _Lost.factor = factor
        with pytest.raises(CopyFailure, match=message):
            check(lost, served)
        with pytest.raises(CopyFailure, match="is off what the copy does"):
            check(lost, served, rounds=True)
    for rounds in (False, True):
        with pytest.raises(CopyFailure, match="8 of 8 inputs change their class"):
            check(copy, lambda x: np.roll(served(x), 1, axis=1), rounds=rounds)
    with pytest.raises(CopyFailure, match="0 of 8 inputs .*, and logits differ by up to"):
        check(copy, lambda x: served(x) * np.float32(1.01))


def strange(model: onnx.ModelProto) -> None:
    model.graph.node[3].CopyFrom(
        helper.make_node("QuickGelu", ["conv"], ["relu"], domain="com.microsoft")
    )
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def test_without_a_derivative_reports_say_what_was_not_tried(tmp_path: Path) -> None:
    model = foreign_graph()
    strange(model)
    artifact = import_model(tmp_path, model, SMALL, differentiable=True)
    source = artifact.manifest.source
    assert source is not None and source.blind is not None
    assert "QuickGelu" in source.blind
    spec = EvaluationSpec.model_validate({"attacks": [{"name": "square", "eps": ["8/255"]}]})
    report = evaluate(spec, [artifact], image_set(2), tmp_path / "report")
    assert any("was imported without gradients" in note for note in report.notes)


def test_pairs_clip_each_channel_within_its_own_scale() -> None:
    model = foreign_graph()
    scale, zero = np.array([0.1, 0.2, 0.4], np.float32), np.array([0, 1, 2], np.int8)
    model.graph.initializer.extend(map(numpy_helper.from_array, (scale, zero), ("scale", "zero")))
    pair = [
        helper.make_node(name, [given, "scale", "zero"], [made], axis=1)
        for name, given, made in (("QuantizeLinear", "x", "q"), ("DequantizeLinear", "q", "y"))
    ]
    position = next(i for i, node in enumerate(model.graph.node) if "x" in node.output)
    del model.graph.node[position + 1 :]
    model.graph.node.extend(pair)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    without_rounding(model)
    images = np.random.default_rng(0).normal(0, 30, (2, 3, SIDE, SIDE)).astype(np.float32)
    [found] = InferenceSession(model.SerializeToString()).run(None, {"images": images})
    low, high = ((end - zero) * scale for end in (-128.0, 127.0))
    expected = images.clip(low.reshape(1, 3, 1, 1), high.reshape(1, 3, 1, 1))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)

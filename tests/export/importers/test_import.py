import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image

from data.sets import ImageSet
from export.__main__ import main
from export.card import render
from export.importers.source import SourceGraph
from export.importers.sources import open_source
from robustness.evaluation import evaluate
from robustness.kinds import NotPossible
from robustness.spec import EvaluationSpec
from robustness.verify import verify
from runtimes.artifact import Artifact, open_artifact
from runtimes.base import RuntimeUnavailable
from runtimes.manifest import ONNX
from runtimes.registry import open_runtime
from tests.imported import NAMES, SIDE, SMALL, foreign_graph, import_model

MEAN, STD = (
    torch.tensor(v).reshape(1, 3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
)


def by_hand(
    images: torch.Tensor, model: onnx.ModelProto, *, scale: float = 1, mean: Any = 0, std: Any = 1
) -> torch.Tensor:
    """The logits of `foreign_graph`, in torch, channels as they are."""
    weights = (onnx.numpy_helper.to_array(tensor).copy() for tensor in model.graph.initializer)
    convolution, head = map(torch.from_numpy, weights)
    x = (images * scale - mean) / std
    return torch.nn.functional.conv2d(x, convolution, padding=1).relu().mean((2, 3)) @ head


def image_set(count: int) -> ImageSet:
    """Images of noise without labels."""
    pixels = np.random.default_rng(1).integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
    return ImageSet(
        names=[str(index) for index in range(count)],
        labels=None,
        label_names=None,
        reader=lambda index: Image.fromarray(pixels[index]),
    )


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "as torch exports it": ({}, SMALL, {"mean": MEAN, "std": STD}),
    "one at a time": ({"batch": 1}, SMALL, {"mean": MEAN, "std": STD}),
    "three at a time, old": ({"batch": 3, "opset": 9}, SMALL, {"mean": MEAN, "std": STD}),
    "as TensorFlow exports it": (
        {"layout": "nhwc", "reads": "x0"},
        {"range": [-1, 1]},
        {"scale": 2, "mean": 1},
    ),
    "bytes": ({"layout": "nhwc", "dtype": TensorProto.UINT8}, {}, {"scale": 255}),
    "half": ({"dtype": TensorProto.FLOAT16}, {"range": [0, 1]}, {}),
    "any size": ({"side": "side"}, {"range": [0, 255], "size": SIDE}, {"scale": 255}),
    "probabilities": ({"softmax": True, "opset": 13}, {"range": [0, 1]}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_imported_graph_answers_as_its_source_does(tmp_path: Path, case: str) -> None:
    options, given, expected = CASES[case]
    model = foreign_graph(**options)
    artifact = import_model(tmp_path, model, given)
    assert artifact.read(ONNX) == (tmp_path / "foreign.onnx").read_bytes()
    images = np.random.default_rng(1).integers(0, 256, (7, 3, SIDE, SIDE)).astype(np.float32) / 255
    logits = open_runtime(artifact, threads=1).predict(images)
    known = by_hand(torch.from_numpy(images), model, **expected).numpy()
    if case == "probabilities":
        known -= np.log(np.exp(known).sum(1, keepdims=True))
    tolerance = 2e-2 if case == "half" else 1e-4
    np.testing.assert_allclose(logits, known, rtol=tolerance, atol=tolerance)
    source = artifact.manifest.source
    assert source is not None
    assert source.batch == (options.get("batch") if options.get("batch") != "N" else None)
    assert source.scores == ("probabilities" if case == "probabilities" else "logits")
    with pytest.raises(RuntimeUnavailable, match="runtime torchscript does not run fp32"):
        open_runtime(artifact, name="torchscript")


def test_a_graph_that_answers_otherwise_in_a_batch_is_asked_one_by_one(tmp_path: Path) -> None:
    model = foreign_graph()
    model.graph.node.pop()
    model.graph.node.append(helper.make_node("ReduceMax", ["scores"], ["most"], axes=[0]))
    model.graph.node.append(helper.make_node("Add", ["scores", "most"], ["logits"]))
    artifact = import_model(tmp_path, model, SMALL)
    assert artifact.manifest.batch == 1
    images = np.random.default_rng(1).random((3, 3, SIDE, SIDE), np.float32)
    known = 2 * by_hand(torch.from_numpy(images), model, mean=MEAN, std=STD).numpy()
    found = open_runtime(artifact, threads=1).predict(images)
    np.testing.assert_allclose(found, known, rtol=1e-4, atol=1e-4)


def test_channels_can_be_in_the_other_order(tmp_path: Path) -> None:
    model = foreign_graph()
    artifact = import_model(tmp_path, model, {"channels": "bgr", "range": [0, 1]})
    images = np.random.default_rng(1).random((2, 3, SIDE, SIDE), np.float32)
    logits = open_runtime(artifact, threads=1).predict(images)
    np.testing.assert_allclose(
        logits, by_hand(torch.from_numpy(images[:, ::-1].copy()), model), atol=1e-5
    )


def test_other_runtimes_and_tools_open_what_was_imported(
    imported: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    images = np.random.default_rng(1).random((3, 3, SIDE, SIDE), np.float32)
    first, second = (
        open_runtime(imported, name=n, threads=1).predict(images) for n in ("onnx-cpu", "openvino")
    )
    np.testing.assert_allclose(first, second, atol=1e-4)
    assert main(["inspect", str(imported.folder)]) == 0
    shown = capsys.readouterr().out
    assert "imported foreign.onnx" in shown
    assert "parity against the source on 200 samples (random pixels)" in shown
    assert main(["compare", str(imported.folder), str(imported.folder)]) == 0
    assert imported.card is not None
    assert "imported from foreign.onnx" in render(imported.card)


@pytest.mark.parametrize("batch", ["N", 3])
def test_the_command_imports_and_inspect_says_what_is_missing(
    tmp_path: Path, batch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file, labels, output = tmp_path / "net.onnx", tmp_path / "labels.txt", tmp_path / "out"
    file.write_bytes(foreign_graph(batch=batch).SerializeToString())
    assert main(["inspect", str(file)]) == 0
    assert "does not tell range (with mean and std, if it has any)" in capsys.readouterr().out
    command = ["import", str(file), "--output", str(output), "--name", "net"]
    for more, message in (
        ([], "net.onnx does not tell range"),
        (
            ["--input", "cifar"],
            r"net.onnx reads .*; the input file says channels rgb, size \[32, 32\]",
        ),
        (["--input", "range.yaml"], "--input must be a file, or imagenet or cifar"),
    ):
        assert main(command + more) == 2
        assert re.search(message, capsys.readouterr().err)
    (tmp_path / "input.yaml").write_text("range: [0, 1]")
    command += ["--input", str(tmp_path / "input.yaml")]
    assert main(command) == 2
    assert "net.onnx does not name its 4 classes: give --labels FILE" in capsys.readouterr().err
    labels.write_text("\n".join(NAMES[:3]))
    assert main([*command, "--labels", str(labels)]) == 2
    assert "has 4 classes, and labels.txt 3 names" in capsys.readouterr().err
    assert not output.exists()
    labels.write_text("\n".join(NAMES))
    assert main([*command, "--labels", str(labels)]) == 0
    assert open_artifact(output).labels == NAMES


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"siez": 8}, "unknown key 'siez'; did you mean 'size'"),
        ({"preset": "coco"}, "preset must be imagenet or cifar, got 'coco'"),
        ({"range": [0]}, "range: List should have at least 2 items"),
        ({"range": ["a", 1]}, "range.0: must be a valid number"),
        ({"std": [0.0, 1, 1]}, "std must be above 0"),
        ({"range": [0, 1], "mean": [0.5]}, "mean must have 3 values, got 1"),
        ({"range": [0, 1], "resize": 4}, "resize must be at least height 8 and width 8, got 4"),
        ({"range": [0, 1], "size": 9}, r"reads \(any, 3, 8, 8\); the input file says"),
        ({"range": [0, 1], "channels": "grey"}, "the input file says channels grey"),
    ],
)
def test_a_wrong_input_file_is_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        import_model(tmp_path, foreign_graph(), fields)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("{0: 'ant', 1: 'bee', 10: 'dog', 2: 'cat'}", ["ant", "bee", "cat", "dog"]),
        ('["ant", "bee", "cat", "dog"]', NAMES),
        ("ant\nbee\ncat\ndog\n", NAMES),
        ('["ant", "bee"]', []),
        ('["ant", "ant", "cat", "dog"]', []),
        ("{0: [}", []),
        ("{'a': 'ant', 'b': 'bee'}", []),
    ],
)
def test_labels_are_read_from_metadata(told: str, expected: list[str]) -> None:
    model = foreign_graph()
    model.metadata_props.add(key="names", value=told)
    assert SourceGraph.of("net.onnx", model.SerializeToString()).labels == expected


def external(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../weights.bin")


def with_input(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.INT64, [1, 8]))


def with_output(model: onnx.ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_value_info("pooled", TensorProto.FLOAT, None))


def detecting(model: onnx.ModelProto) -> None:
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 84, 8400])
    )


def custom(model: onnx.ModelProto) -> None:
    model.graph.node[3].domain = "my.company"
    model.opset_import.append(helper.make_opsetid("my.company", 1))


def tokens(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64


def unknown(model: onnx.ModelProto) -> None:
    model.graph.node[3].op_type = "Telepathy"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (external, r"keeps its weights in other files \(weights.bin\): save it as one file first"),
        (with_input, "must read one input, images, got 2: images, mask"),
        (with_output, "must be a classifier, which gives one output, got 2: logits, pooled"),
        (detecting, r"a score for each class, got logits \(1, 84, 8400\) float"),
        (custom, "has operators of its own: my.company::Relu"),
        (
            tokens,
            r"images of four axes, or tokens as integers of two, got images \(any, 3, 8, 8\) int64",
        ),
        (unknown, "cannot be opened by ONNX Runtime: .*Telepathy"),
    ],
)
def test_what_is_no_image_classifier_is_refused_in_one_sentence(
    tmp_path: Path, change: Any, message: str
) -> None:
    model = foreign_graph()
    change(model)
    with pytest.raises(ValueError, match=message) as caught:
        import_model(tmp_path, model, SMALL)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_broken_files_are_refused(tmp_path: Path) -> None:
    whole, path = foreign_graph().SerializeToString(), tmp_path / "cut.onnx"
    for content, message in (
        (whole[: len(whole) // 2], "cut.onnx is no ONNX file, or was cut short"),
        (b"", "cut.onnx is no ONNX file: it holds no graph"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            open_source(str(path))
    with path.open("wb") as file:
        file.truncate(2**31)  # a hole: it takes no space
    with pytest.raises(ValueError, match="must be smaller than 2 GB"):
        open_source(str(path))


def test_an_imported_graph_is_evaluated_by_asking_it(imported: Artifact, tmp_path: Path) -> None:
    square = {"name": "square", "eps": ["64/255"], "queries": 50}
    spec = EvaluationSpec.model_validate({"attacks": [square]})
    report = evaluate(spec, [imported], image_set(6), tmp_path)
    [model] = report.summary.models
    assert (model.digest, model.clean.top1) == (imported.digest, 1)
    [attack] = model.attacks
    assert attack.robust.top1 == attack.confirmed < 1
    assert not [w for w in report.summary.warnings if w.code != "not_above_chance"]
    assert verify(tmp_path, folders=[imported.folder]).confirmed
    spec = EvaluationSpec.model_validate({"attacks": [{"name": "pgd", "eps": ["1/255"]}]})
    with pytest.raises(NotPossible, match="'foreign' has none: use square, spsa"):
        evaluate(spec, [imported], image_set(6), tmp_path)

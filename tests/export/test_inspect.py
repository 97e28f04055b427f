import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from safetensors.numpy import save

from export.__main__ import main
from export.inspect import compare_answers, facts
from runtimes.artifact import Artifact, ArtifactError, open_artifact
from runtimes.manifest import ONNX, PROBE, WEIGHTS
from tests.exported import change_tensor, edit_manifest, with_file


def test_inspect_shows_files_parity_weights_and_operators(
    artifact: Artifact, text_artifact: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(text_artifact.folder)]) == 0
    assert "(of 12 tokens)" in capsys.readouterr().out
    assert main(["inspect", str(artifact.folder)]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["digest", artifact.digest] in shown
    assert ["precision", "fp32"] in shown
    files = {line[0]: line for line in shown if line and line[0] in artifact.manifest.files}
    assert files["model.pt2"][2:4] == ["fp32", "torch.export"]
    assert files["weights.safetensors"][2:] == []
    assert ["Softmax", "3"] in shown
    shares = [float(line[3].rstrip("%")) for line in shown if len(line) == 4 and "%" in line[3]]
    assert sum(shares) == pytest.approx(100, abs=0.2)


def test_the_accuracy_of_training_is_said_to_be_in_fp32(artifact_folder: Path) -> None:
    assert ("test accuracy", "0.25") in facts(open_artifact(artifact_folder))
    edit_manifest(artifact_folder, precision="fp16")
    assert ("test accuracy", "0.25 (in fp32)") in facts(open_artifact(artifact_folder))


@pytest.fixture
def other(artifact: Artifact, tmp_path: Path) -> Artifact:
    """The artifact with the bias of one class raised, and another name."""
    folder = Path(shutil.copytree(artifact.folder, tmp_path / "other"))
    raised = change_tensor("head.bias", lambda bias: bias + np.array([0, 0.5, 0, 0, 0]))
    return with_file(folder, ONNX, raised, name="other")


def test_compare_shows_what_differs_and_refuses_other_labels(
    artifact: Artifact, other: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(artifact.folder), str(other.folder)]) == 0
    out = capsys.readouterr().out
    assert f"on 200 stored inputs of {artifact.name}:" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["labels", "5", "="] in lines
    assert ["model", "tiny-elliptical", "1", "other", "1"] in lines
    answers = compare_answers(artifact, other)
    assert answers.largest == pytest.approx(0.5, abs=1e-3)
    assert answers.mean == pytest.approx(0.1, abs=1e-3)
    assert 100 < answers.same < answers.samples == 200
    assert f"same class          {answers.same} of 200 ({answers.same / 200:.2%})" in out
    assert "runtimes            onnx-cpu (fp32), onnx-cpu (fp32)" in out
    assert compare_answers(artifact, artifact).same == 200
    edit_manifest(other.folder, labels=["a", "b", "c", "d", "e"])
    with pytest.raises(ArtifactError, match="must have the same labels"):
        compare_answers(artifact, open_artifact(other.folder))


def rename_output(graph: onnx.ModelProto) -> None:
    old = graph.graph.output[0].name
    for node in graph.graph.node:
        node.output[:] = ["scores" if name == old else name for name in node.output]
    graph.graph.output[0].name = "scores"


def flatten_logits(graph: onnx.ModelProto) -> None:
    old = graph.graph.output[0].name
    graph.graph.node[-1].output[0] = "before"
    graph.graph.node.append(helper.make_node("ReduceMax", ["before"], [old], keepdims=0))
    graph.graph.output[0].type.tensor_type.ClearField("shape")


STORED = {"images": np.zeros((2, 1, 27, 28), np.uint8), "logits": np.zeros((2, 5), np.float32)}


@pytest.mark.parametrize(
    ("name", "content", "inspected", "message"),
    [
        (ONNX, lambda graph: graph.Clear(), 2, "model.onnx cannot be opened: InvalidArgument"),
        (WEIGHTS, b"", 2, "weights.safetensors of other must be a safetensors file"),
        (WEIGHTS, b"\x02" + bytes(7) + b"[]", 2, "weights.safetensors of other must be a"),
        (ONNX, rename_output, 0, "other: model.onnx must have the output logits, got scores"),
        (ONNX, flatten_logits, 0, "other: logits must be (32, 5), got ()"),
        (ONNX, change_tensor("head.bias", lambda b: b + np.inf), 0, "other: logits must be finite"),
        (PROBE, save(STORED), 0, "of other: images must be (B >= 1, 1, 28, 28), got"),
    ],
)
def test_inspect_and_compare_name_what_cannot_be_read(
    name: str,
    content: bytes | Callable[[onnx.ModelProto], object],
    inspected: int,
    message: str,
    artifact: Artifact,
    other: Artifact,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with_file(other.folder, name, content, name="other")
    assert main(["compare", str(other.folder), str(artifact.folder)]) == 2
    assert message in capsys.readouterr().err
    assert main(["inspect", str(other.folder)]) == inspected
    assert (message in capsys.readouterr().err) == (inspected == 2)

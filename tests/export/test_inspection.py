import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from export.__main__ import main
from export.artifact import Artifact, ArtifactError, open_artifact
from export.comparison import compare_answers
from export.inspection import facts
from export.tables import table

Edit = Callable[..., None]


def test_columns_are_aligned_under_their_heads() -> None:
    assert table(("name", "n"), [("a", 5), ("long name", 12)]).splitlines() == [
        "name        n",
        "a           5",
        "long name  12",
    ]
    assert table(("", ""), [("a", "x")], left=2) == "a  x"


def test_inspect_shows_files_parity_weights_and_operators(
    artifact: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_inspect_counts_the_tokens_of_a_text_model(
    text_artifact: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(text_artifact.folder)]) == 0
    assert "(of 12 tokens)" in capsys.readouterr().out


def test_the_accuracy_of_the_trained_weights_is_not_taken_for_that_of_a_lower_precision(
    artifact_folder: Path, edit_manifest: Edit
) -> None:
    assert ("test accuracy", "0.25") in facts(open_artifact(artifact_folder))
    edit_manifest(artifact_folder, precision="fp16")
    assert ("test accuracy", "0.25 (in fp32)") in facts(open_artifact(artifact_folder))


def test_a_folder_that_is_no_artifact_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tmp_path)]) == 2
    assert "error: manifest.json is missing" in capsys.readouterr().err


@pytest.fixture
def other(artifact: Artifact, tmp_path: Path, edit_manifest: Edit) -> Artifact:
    """The artifact with the bias of one class raised, and another name."""
    folder = Path(shutil.copytree(artifact.folder, tmp_path / "other"))
    graph = onnx.load(folder / "model.onnx")
    bias = next(tensor for tensor in graph.graph.initializer if tensor.name == "head.bias")
    values = numpy_helper.to_array(bias) + np.array([0, 0.5, 0, 0, 0], np.float32)
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
    edit_manifest(folder, name="other")
    return open_artifact(folder)


def test_compare_shows_what_differs(
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
    assert 0.5 < answers.agreement < 1
    assert compare_answers(artifact, artifact).agreement == 1


def test_models_of_different_labels_are_not_compared(
    artifact: Artifact, other: Artifact, edit_manifest: Edit
) -> None:
    edit_manifest(other.folder, labels=["a", "b", "c", "d", "e"])
    with pytest.raises(ArtifactError, match="must have the same labels"):
        compare_answers(artifact, open_artifact(other.folder))

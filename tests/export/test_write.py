import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from onnx import numpy_helper
from torch import nn

import export.write
from export.__main__ import main
from export.onnx import to_onnx
from runtimes.artifact import Artifact, open_artifact

FILES = ("model.onnx", "model.torchscript.pt", "model.pt2", "weights.safetensors")


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def perturbed(*arguments: object) -> bytes:
    """The real export, with one weight of the graph moved."""
    return moved(to_onnx(*arguments))  # pyright: ignore[reportArgumentType]


def moved(content: bytes, step: float = 0.01) -> bytes:
    """A graph with one weight moved."""
    graph = onnx.load_from_string(content)
    tensor = next(t for t in graph.graph.initializer if t.name == "head.bias")
    values = numpy_helper.to_array(tensor).copy()
    values[0] += step
    tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), tensor.name))
    return graph.SerializeToString()


def test_export_writes_an_artifact_and_prints_its_parity(
    run_folder: Path, artifact: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "deep" / "tiny"
    assert main([str(run_folder), "--output", str(output)]) == 0
    written = open_artifact(output)
    assert [path.name for path in output.parent.iterdir()] == ["tiny"]
    parity = written.manifest.parity
    assert parity.samples == 1200
    assert {name: figures.runtime for name, figures in parity.formats.items()} == {
        "model.onnx": "onnx-cpu",
        "model.torchscript.pt": "torchscript",
        "model.pt2": "torch.export",
    }
    assert all(figures.max_abs_diff <= 1e-4 for figures in parity.formats.values())
    assert {figures.accuracy for figures in parity.formats.values()} == {parity.accuracy}
    out = capsys.readouterr().out
    assert f"digest {written.digest}" in out
    assert "parity against eager on 1200 samples" in out
    assert written.read("model.onnx") == artifact.read("model.onnx")  # exported twice, same bytes


def test_metadata_of_the_graph_names_weights_and_config(artifact: Artifact) -> None:
    graph = onnx.load_from_string(artifact.read("model.onnx"))
    weights, config = artifact.read("weights.safetensors"), artifact.manifest.config
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert {entry.key: entry.value for entry in graph.metadata_props} == {
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "config_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }


def test_manifest_tells_where_the_model_came_from(artifact: Artifact) -> None:
    manifest = artifact.manifest
    assert manifest.config["elliptical"] is True
    assert manifest.metrics == {"test_accuracy": 0.25, "seconds": 1.5}
    assert manifest.training["seed"] == 3
    assert manifest.training["weights_sha256"] == manifest.files["weights.safetensors"]
    assert "/" not in manifest.training["recipe"]["data"]["source"]
    assert (artifact.folder.stat().st_mode & 0o777) == 0o755


def test_a_failed_parity_fails_the_export_and_leaves_nothing(
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(export.write, "to_onnx", perturbed)
    assert main([str(run_folder), "--output", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "model.onnx: logits differ by 1.00e-02" in said
    assert list(tmp_path.iterdir()) == []
    assert "error of each layer:" in said
    table = said.splitlines()[-4:]
    errors = {name: float(error) for name, error in map(str.split, table)}
    assert list(errors) == ["layer_1", "layer_2", "layer_3", "logits"]
    assert max(errors["layer_1"], errors["layer_3"]) < 1e-5 < errors["logits"]


@pytest.fixture
def traced(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The graphs of the next exports, already made."""
    files = {name: artifact.read(name) for name in FILES}
    monkeypatch.setattr(export.write, "_export", lambda *_, **__: files)
    return files


def test_a_failed_export_leaves_an_older_artifact_as_it_was(
    run_folder: Path, artifact_folder: Path, traced: dict[str, bytes]
) -> None:
    digest = open_artifact(artifact_folder).digest
    traced["model.onnx"] = moved(traced["model.onnx"])
    assert main([str(run_folder), "--output", str(artifact_folder)]) == 1
    assert open_artifact(artifact_folder).digest == digest
    names = {path.name for path in artifact_folder.parent.iterdir()}
    assert names == {artifact_folder.name}


def test_a_graph_that_overflows_is_explained(
    run_folder: Path, tmp_path: Path, traced: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    traced["model.onnx"] = moved(traced["model.onnx"], float("inf"))
    assert main([str(run_folder), "--output", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "model.onnx: logits must be finite" in said
    errors = {name: float(error) for name, error in map(str.split, said.splitlines()[-4:])}
    assert errors["layer_3"] < 1e-5 and errors["logits"] == float("inf")


@pytest.mark.usefixtures("traced")
def test_no_layers_are_blamed_where_another_format_fails(
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    load = export.write.load_torchscript
    wrong = nn.Softmax(dim=1)
    monkeypatch.setattr(
        export.write, "load_torchscript", lambda content: nn.Sequential(load(content), wrong)
    )
    assert main([str(run_folder), "--output", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "model.torchscript.pt: logits differ" in said and "layer_1" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("when", ["_export", "write_card", "_replace"])
def test_an_interrupted_export_leaves_nothing_new(
    run_folder: Path,
    artifact_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    when: str,
) -> None:
    digest = open_artifact(artifact_folder).digest
    monkeypatch.setattr(export.write, when, interrupt)
    assert main([str(run_folder), "--output", str(artifact_folder)]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert open_artifact(artifact_folder).digest == digest
    assert list(artifact_folder.parent.iterdir()) == [artifact_folder]


def test_an_interrupt_between_two_renames_brings_the_old_artifact_back(
    artifact_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partial := tmp_path / "partial").mkdir()
    rename = Path.rename
    monkeypatch.setattr(
        Path, "rename", lambda old, new: interrupt() if old == partial else rename(old, new)
    )
    with pytest.raises(KeyboardInterrupt):
        export.write._replace(artifact_folder, partial)
    assert open_artifact(artifact_folder).name == "tiny-elliptical"


def test_every_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ([], ["inspect"], ["compare"]):
        with pytest.raises(SystemExit) as end:
            main([*command, "--help"])
        assert end.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    for text in ("labeled samples", "of model.onnx", "static by calibration", "model store"):
        assert text in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--precision", "fp64"], "argument --precision: invalid choice: 'fp64'"),
        (["--quantization", "slow"], "argument --quantization: invalid choice: 'slow'"),
        (["--surprise"], "unrecognized arguments: --surprise"),
    ],
)
def test_a_wrong_option_is_refused(
    run_folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(run_folder), "--output", "unused", *options])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_quantization_of_another_precision_is_refused(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(run_folder), "--output", str(tmp_path / "out"), "--quantization", "dynamic"]
    assert main(arguments) == 2
    assert "--quantization must come with --precision int8, got fp32" in capsys.readouterr().err


def test_too_few_images_fail_the_export(
    run_folder: Path, images_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(run_folder), "--output", str(tmp_path / "out"), "--data", str(images_folder)]
    assert main(arguments) == 2
    assert "at least 1000 samples, got 20" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_program_can_be_left_out(run_folder: Path, tmp_path: Path) -> None:
    assert main([str(run_folder), "--output", str(tmp_path / "out"), "--no-program"]) == 0
    manifest = open_artifact(tmp_path / "out").manifest
    assert "model.pt2" not in {*manifest.files, *manifest.parity.formats}
    assert {"model.onnx", "model.torchscript.pt"} <= set(manifest.files)


def test_a_folder_with_something_else_is_not_replaced(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    assert main([str(run_folder), "--output", str(tmp_path)]) == 2
    assert "output must be new, empty or an artifact" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").read_text() == "precious"


@pytest.mark.usefixtures("traced")
def test_an_older_artifact_is_replaced(run_folder: Path, artifact_folder: Path) -> None:
    (artifact_folder / "model.onnx").write_bytes(b"old and broken")
    assert main([str(run_folder), "--output", str(artifact_folder)]) == 0
    assert open_artifact(artifact_folder).name == "tiny-elliptical"
    assert [path.name for path in artifact_folder.parent.iterdir()] == [artifact_folder.name]


@pytest.mark.parametrize("name", ["recipe.yaml", "metrics.json", "best.safetensors"])
def test_an_unfinished_run_is_refused(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    copy = shutil.copytree(run_folder, tmp_path / "run")
    (copy / name).unlink()
    assert main([str(copy), "--output", str(tmp_path / "out")]) == 2
    assert f"holds no finished run: {name} is missing" in capsys.readouterr().err


def test_a_run_that_was_not_tested_yet_is_refused(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run_folder, tmp_path / "run")
    (copy / "metrics.json").write_text(json.dumps({"valid_accuracy": 0.9}))
    assert main([str(copy), "--output", str(tmp_path / "out")]) == 2
    assert "metrics.json has no test_accuracy yet" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["labels", "name", "version", "seed", "source", "valid"])
def test_a_recipe_without_a_needed_key_is_refused(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    copy = shutil.copytree(run_folder, tmp_path / "run")
    recipe = yaml.safe_load((copy / "recipe.yaml").read_text())
    (recipe if key in recipe else recipe["data"]).pop(key)
    (copy / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert main([str(copy), "--output", str(tmp_path / "out")]) == 2
    assert f"recipe.yaml lacks what an artifact needs: '{key}'" in capsys.readouterr().err


def test_weights_of_another_model_are_refused(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run_folder, tmp_path / "run")
    recipe = (copy / "recipe.yaml").read_text().replace("depth: 3", "depth: 2")
    (copy / "recipe.yaml").write_text(recipe)
    assert main([str(copy), "--output", str(tmp_path / "out")]) == 2
    assert "best.safetensors does not fit" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_card_lies_beside_the_manifest_and_names_its_digest(artifact: Artifact) -> None:
    card = json.loads((artifact.folder / "card.json").read_text())
    assert card == artifact.card
    assert card["digest"] == artifact.digest
    assert "card.json" not in artifact.manifest.files

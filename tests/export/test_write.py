import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from torch import nn

import export.write
from export.__main__ import main
from runtimes.artifact import Artifact, open_artifact
from tests.exported import change_tensor, changed_graph


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_export_writes_an_artifact_that_tells_its_origin_and_parity(
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
    for name in ("model.onnx", "model.pt2", "weights.safetensors", "probe.safetensors"):
        assert written.read(name) == artifact.read(name)  # exported twice, the same bytes
    manifest = written.manifest
    assert manifest.config["attention"] == "elliptical"
    assert manifest.metrics == {"test_accuracy": 0.25, "test_loss": 1.25, "seconds": 1.5}
    assert manifest.training["seed"] == 3
    assert manifest.training["weights_sha256"] == manifest.files["weights.safetensors"]
    assert "/" not in manifest.training["recipe"]["data"]["source"]
    assert (output.stat().st_mode & 0o777) == 0o755


@pytest.mark.parametrize(
    ("step", "problem"),
    [(0.01, "logits differ by 1.00e-02"), (float("inf"), "logits must be finite")],
)
def test_a_failed_parity_is_explained_and_leaves_an_older_artifact_as_it_was(
    run_folder: Path,
    artifact_folder: Path,
    traced: dict[str, bytes],
    capsys: pytest.CaptureFixture[str],
    step: float,
    problem: str,
) -> None:
    digest = open_artifact(artifact_folder).digest
    move = change_tensor("head.bias", lambda bias: bias + np.array([step, 0, 0, 0, 0]))
    traced["model.onnx"] = changed_graph(traced["model.onnx"], move)
    assert main([str(run_folder), "--output", str(artifact_folder)]) == 1
    said = capsys.readouterr().err
    assert f"model.onnx: {problem}" in said and "error of each layer:" in said
    errors = {name: float(error) for name, error in map(str.split, said.splitlines()[-4:])}
    assert list(errors) == ["layer_1", "layer_2", "layer_3", "logits"]
    assert max(errors["layer_1"], errors["layer_3"]) < 1e-5 < errors["logits"]
    assert open_artifact(artifact_folder).digest == digest
    assert list(artifact_folder.parent.iterdir()) == [artifact_folder]


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
@pytest.mark.parametrize("when", ["_export", "replace_folder"])
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
        export.write.replace_folder(artifact_folder, partial)
    assert open_artifact(artifact_folder).name == "tiny-elliptical"


def test_options_are_explained_and_wrong_ones_refused(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = [str(run_folder), "--output", "unused", "--precision", "fp64"]
    for command in (["--help"], ["inspect", "--help"], ["compare", "--help"], wrong):
        with pytest.raises(SystemExit) as end:
            main(command)
        assert end.value.code == (2 if command == wrong else 0)
    said = capsys.readouterr()
    assert "argument --precision: invalid choice: 'fp64'" in said.err
    for text in ("labeled samples", "of model.onnx", "static by calibration", "model store"):
        assert text in " ".join(said.out.split())


def refused(arguments: list[Path | str], capsys: pytest.CaptureFixture[str]) -> str:
    """What an export says that ends with status 2."""
    assert main([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err


def test_a_bad_request_is_refused_and_writes_nothing(
    run_folder: Path, images_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [run_folder, "--output", tmp_path / "out"]
    said = refused([*command, "--quantization", "dynamic"], capsys)
    assert "--quantization must come with --precision int8, got fp32" in said
    assert "at least 1000 samples, got 20" in refused([*command, "--data", images_folder], capsys)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "thesis.tex").write_text("precious")
    said = refused([run_folder, "--output", tmp_path], capsys)
    assert "output must be new, empty or an artifact" in said
    assert (tmp_path / "thesis.tex").read_text() == "precious"


@pytest.mark.slow
def test_the_program_can_be_left_out(run_folder: Path, tmp_path: Path) -> None:
    assert main([str(run_folder), "--output", str(tmp_path / "out"), "--no-program"]) == 0
    manifest = open_artifact(tmp_path / "out").manifest
    assert "model.pt2" not in {*manifest.files, *manifest.parity.formats}
    assert {"model.onnx", "model.torchscript.pt"} <= set(manifest.files)


@pytest.mark.usefixtures("traced")
def test_an_older_artifact_is_replaced(run_folder: Path, artifact_folder: Path) -> None:
    (artifact_folder / "model.onnx").write_bytes(b"old and broken")
    assert main([str(run_folder), "--output", str(artifact_folder)]) == 0
    assert open_artifact(artifact_folder).name == "tiny-elliptical"
    assert [path.name for path in artifact_folder.parent.iterdir()] == [artifact_folder.name]


def change_recipe(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    change(recipe)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))


def without(key: str) -> Callable[[Path], None]:
    return lambda folder: change_recipe(
        folder, lambda recipe: (recipe if key in recipe else recipe["data"]).pop(key)
    )


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("which", "spoil", "message"),
    [
        ("text_run_folder", without("tokenizer"), "must be a run on images or on texts"),
        ("text_run_folder", remove("tokenizer.json"), "finished run: tokenizer.json is missing"),
        *(
            ("run_folder", remove(name), f"run: {name} is missing")
            for name in ("recipe.yaml", "metrics.json", "best.safetensors")
        ),
        (
            "run_folder",
            lambda folder: (folder / "metrics.json").write_text('{"valid_accuracy": 0.9}'),
            "metrics.json has no test_accuracy yet",
        ),
        *(
            ("run_folder", without(key), f"recipe.yaml lacks what an artifact needs: '{key}'")
            for key in ("labels", "name", "version", "seed", "source", "valid")
        ),
        (
            "run_folder",
            lambda folder: change_recipe(folder, lambda recipe: recipe["model"].update(depth=2)),
            "best.safetensors does not fit",
        ),
    ],
)
def test_an_unfinished_or_broken_run_is_refused(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    which: str,
    spoil: Callable[[Path], object],
    message: str,
) -> None:
    copy = Path(shutil.copytree(request.getfixturevalue(which), tmp_path / "run"))
    spoil(copy)
    assert message in refused([copy, "--output", tmp_path / "out"], capsys)
    assert not (tmp_path / "out").exists()

"""Artifacts of every precision, from a run to what their manifests say."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from export import graphs
from export.__main__ import main
from export.graphs import open_graph
from runtimes.artifact import Artifact, open_artifact
from runtimes.manifest import Precision, Quantization
from runtimes.probe import read_probe

SHIPPED = Path(__file__).parents[2] / "artifacts"


@pytest.fixture(scope="module")
def shipped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a shipped model, as its artifact tells it."""
    artifact = open_artifact(SHIPPED / "fashion-elliptical")
    folder = tmp_path_factory.mktemp("runs") / "fashion-elliptical"
    folder.mkdir()
    recipe = artifact.manifest.training["recipe"]
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (folder / "metrics.json").write_text(json.dumps(artifact.manifest.metrics))
    shutil.copy(artifact.file("weights.safetensors"), folder / "best.safetensors")
    return folder


@pytest.mark.data
@pytest.mark.parametrize(
    ("precision", "quantization", "runtime"),
    [
        pytest.param("fp16", None, "onnx-cpu", marks=pytest.mark.slow),
        ("int8", "static", "onnx-cpu"),
        pytest.param("bf16", None, "openvino", marks=[pytest.mark.bf16, pytest.mark.slow]),
        pytest.param("int8", "dynamic", "onnx-cpu", marks=pytest.mark.slow),
    ],
)
def test_a_trained_model_passes_the_gate_in_every_precision(
    shipped_run: Path,
    tmp_path: Path,
    precision: Precision,
    quantization: Quantization | None,
    runtime: str,
) -> None:
    arguments = [str(shipped_run), "--output", str(tmp_path / "out"), "--precision", precision]
    arguments += ["--quantization", quantization] if quantization else []
    assert main([*arguments, "--data", "fashion-mnist"]) == 0
    artifact = open_artifact(tmp_path / "out")
    manifest = artifact.manifest
    assert (manifest.precision, manifest.quantization) == (precision, quantization)
    graph = manifest.parity.formats["model.onnx"]
    assert (graph.precision, graph.runtime) == (precision, runtime)
    assert manifest.parity.samples == 2000
    assert graph.top1_mismatches <= 10
    assert graph.accuracy is not None and manifest.parity.accuracy is not None
    assert abs(graph.accuracy - manifest.parity.accuracy) <= 0.003
    assert manifest.parity.formats["model.pt2"].precision == "fp32"
    _assert_probe_agrees(artifact, precision)


def _assert_probe_agrees(artifact: Artifact, precision: Precision) -> None:
    engine, changed = open_graph(artifact.read("model.onnx"), precision), 0
    for feed, logits in read_probe(artifact).batches(100):
        changed += int((engine(feed).argmax(1) != logits.argmax(1)).sum())
    assert changed <= 2


def test_a_precision_that_fails_the_gate_leaves_no_artifact(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The labels of the tiny run are noise and so are its weights: int8 changes many classes."""
    arguments = [str(run_folder), "--output", str(tmp_path / "out"), "--precision", "int8"]
    assert main([*arguments, "--quantization", "dynamic"]) == 1
    said = capsys.readouterr().err
    assert "change their class in int8, more than 0.5%" in said
    assert list(tmp_path.iterdir()) == []


def test_static_int8_needs_samples_for_calibration_too(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(run_folder), "--output", str(tmp_path / "out"), "--precision", "int8"]
    assert main(arguments) == 2
    assert "at least 1000 samples, got 944" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_bf16_is_refused_where_nothing_executes_it(
    run_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs.openvino_runtime, "missing", lambda: "it is not installed")
    arguments = [str(run_folder), "--output", str(tmp_path / "out"), "--precision", "bf16"]
    assert main(arguments) == 2
    assert "bf16 is measured on a runtime that executes it" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

"""Artifacts of every precision, from a run to what their manifests say."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

import export.write
from export import graphs
from export.__main__ import main
from export.graphs import open_graph
from runtimes.artifact import open_artifact
from runtimes.manifest import PROBE, WEIGHTS, Precision, Quantization
from runtimes.probe import read_probe

SHIPPED = Path(__file__).parents[2] / "artifacts"


@pytest.fixture
def shipped_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run of a shipped model, as its artifact tells it, and its files, already made."""
    artifact = open_artifact(SHIPPED / "fashion-elliptical")
    (folder := tmp_path / "run").mkdir()
    recipe = artifact.manifest.training["recipe"]
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (folder / "metrics.json").write_text(json.dumps(artifact.manifest.metrics))
    shutil.copy(artifact.file(WEIGHTS), folder / "best.safetensors")
    made = {name: artifact.read(name) for name in artifact.manifest.files if name != PROBE}
    monkeypatch.setattr(export.write, "_export", lambda *_, **__: dict(made))
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
    assert manifest.parity.formats["model.torchscript.pt"].precision == "fp32"
    answer = open_graph(artifact.read("model.onnx"), precision)
    batches = read_probe(artifact).batches(100)
    assert sum(int((answer(x).argmax(1) != y.argmax(1)).sum()) for x, y in batches) <= 2


def attempt(run_folder: Path, output: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """The exit status of an export that leaves nothing behind, and what it says."""
    status = main([str(run_folder), "--output", str(output / "out"), "--precision", *more])
    assert not list(output.iterdir())
    return f"{status} {capsys.readouterr().err}"


@pytest.mark.usefixtures("traced")
def test_a_precision_that_fails_the_gate_leaves_no_artifact(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The labels of the tiny run are noise and so are its weights: int8 changes many classes."""
    said = attempt(run_folder, tmp_path, capsys, "int8", "--quantization", "dynamic")
    assert said.startswith("1 ") and "change their class in int8, more than 0.5%" in said
    said = attempt(run_folder, tmp_path, capsys, "int8")
    assert said.startswith("2 ") and "at least 1000 samples, got 944" in said


@pytest.mark.parametrize(
    ("missing", "reason"), [("it is not installed", "it is not"), (None, "this processor")]
)
def test_bf16_is_refused_where_nothing_executes_it(
    run_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    missing: str | None,
    reason: str,
) -> None:
    monkeypatch.setattr(graphs, "_has_cuda", lambda: False)
    monkeypatch.setattr(graphs.openvino_runtime, "missing", lambda: missing)
    monkeypatch.setattr(graphs.openvino_runtime, "able_to_run", lambda precision: False)
    said = attempt(run_folder, tmp_path, capsys, "bf16")
    message = "bf16 is measured on a runtime that executes it (OpenVINO, CUDA): "
    assert said.startswith("2 ") and message + reason in said

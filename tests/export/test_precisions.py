"""Artifacts of every precision, from a run to what their manifests say."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import export.write
from export import graphs
from export.__main__ import main
from export.graphs import open_graph
from runtimes.artifact import Artifact, open_artifact
from runtimes.manifest import PROBE, WEIGHTS, Precision, Quantization
from runtimes.probe import read_probe
from runtimes.registry import open_runtime
from tests.exported import write_run
from training.__main__ import main as training

FILLING = ["the", "film", "was", "so", "very", "and", "then"]
TELLING = (["bad", "awful", "boring"], ["good", "lovely", "great"])
RECIPE = {
    "name": "words",
    "labels": ["neg", "pos"],
    "model": {"name": "transject", "embed_dim": 16, "depth": 2},
    "data": {"source": "imdb", "valid": 1300, "max_len": 12, "vocab_size": 60},
    "train": {"epochs": 8, "batch_size": 16, "lr": 5.0e-2, "optimizer": "adam", "weight_decay": 0},
}


def write_reviews(path: Path, count: int) -> None:
    """Reviews of three to eleven words, one of which tells the label."""
    random = np.random.default_rng(count)
    labels = random.integers(0, 2, count)
    texts = []
    for label in labels:
        words = [*random.choice(FILLING, random.integers(2, 11)), random.choice(TELLING[label])]
        texts.append(" ".join(map(str, random.permutation(words))))
    pq.write_table(pa.table({"text": texts, "label": labels.astype(np.int64)}), path)


SHIPPED = Path(__file__).parents[2] / "artifacts"


@pytest.fixture
def shipped_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run of a shipped model, as its artifact tells it, and its files, already made."""
    artifact = open_artifact(SHIPPED / "fashion-elliptical")
    (folder := tmp_path / "run").mkdir()
    write_run(folder, artifact.manifest.training["recipe"], artifact.manifest.metrics)
    shutil.copy(artifact.file(WEIGHTS), folder / "best.safetensors")
    made = {name: artifact.read(name) for name in artifact.manifest.files if name != PROBE}
    monkeypatch.setattr(export.write, "_export", lambda *_, **__: dict(made))
    return folder


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run on texts that training made, with the files that its exports share."""
    folder = tmp_path_factory.mktemp("reviews")
    write_reviews(folder / "imdb-train.parquet", 1500)
    write_reviews(folder / "imdb-test.parquet", 40)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    made: dict[str, bytes] = {}
    export_once = export.write._export

    def shared(*arguments: Any, **options: Any) -> dict[str, bytes]:
        if not made:
            made.update(export_once(*arguments, **options))
        return dict(made)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_DATA", str(folder))
        patch.setattr(export.write, "_export", shared)
        assert training(["fit", str(folder / "recipe.yaml"), "--output", str(folder / "run")]) == 0
        yield folder / "run"


PARTS = ("precision", "quantization", "runtime")
FORMS = [
    pytest.param("fp32", None, "onnx-cpu", marks=pytest.mark.slow),
    pytest.param("fp16", None, "onnx-cpu", marks=pytest.mark.slow),
    pytest.param("bf16", None, "openvino", marks=[pytest.mark.bf16, pytest.mark.slow]),
    ("int8", "static", "onnx-cpu"),
    pytest.param("int8", "dynamic", "onnx-cpu", marks=pytest.mark.slow),
]
Form = tuple[Precision, Quantization | None, str]


def exported(run: Path, output: Path, form: Form, *more: str) -> Artifact:
    """An artifact of a precision whose figures suffice and whose graph answers its probe."""
    precision, quantization, runtime = form
    arguments = [str(run), "--output", str(output), "--precision", precision, *more]
    assert main(arguments + (["--quantization", quantization] if quantization else [])) == 0
    artifact = open_artifact(output)
    manifest, parity = artifact.manifest, artifact.manifest.parity
    assert (manifest.precision, manifest.quantization) == (precision, quantization)
    figures = parity.formats["model.onnx"]
    assert (figures.precision, figures.runtime) == (precision, runtime)
    assert figures.top1_mismatches <= (0 if precision == "fp32" else 0.005 * parity.samples)
    assert figures.accuracy is not None and parity.accuracy is not None
    assert abs(figures.accuracy - parity.accuracy) <= 0.003
    for name in {*parity.formats} - {"model.onnx"}:
        assert parity.formats[name].top1_mismatches == 0
        assert parity.formats[name].max_abs_diff <= 1e-4
    answer = open_graph(artifact.read("model.onnx"), precision)
    batches = read_probe(artifact).batches(100)
    assert sum(int((answer(x).argmax(1) != y.argmax(1)).sum()) for x, y in batches) <= 2
    return artifact


@pytest.mark.data
@pytest.mark.parametrize(PARTS, FORMS[1:])
def test_a_trained_image_model_passes_the_gate_in_every_precision(
    shipped_run: Path, tmp_path: Path, precision: Any, quantization: Any, runtime: str
) -> None:
    form = (precision, quantization, runtime)
    artifact = exported(shipped_run, tmp_path / "out", form, "--data", "fashion-mnist")
    assert artifact.manifest.parity.samples == 2000


@pytest.mark.slow
@pytest.mark.parametrize(PARTS, FORMS)
def test_a_trained_text_model_answers_in_every_precision(
    text_run: Path, tmp_path: Path, precision: Any, quantization: Any, runtime: str
) -> None:
    artifact = exported(text_run, tmp_path / "out", (precision, quantization, runtime))
    parity = artifact.manifest.parity
    assert parity.samples == (1300 - 256 if quantization == "static" else 1300)
    assert parity.accuracy is not None and parity.accuracy > 0.95
    tokens, mask = artifact.tokenizer().encode(["a lovely film", "so boring and bad"], 12)
    given = {"tokens": tokens, "mask": mask}
    answers = open_runtime(artifact, name=runtime, threads=1).predict(given)
    assert [artifact.labels[index] for index in answers.argmax(1)] == ["pos", "neg"]


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
    assert said.startswith("2 ") and "samples, got 944 beside 256 for calibration" in said


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

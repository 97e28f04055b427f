"""From a recipe on texts to an answer: trained, exported in every precision, opened, asked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import export.write
from export.__main__ import main
from runtimes.artifact import open_artifact
from runtimes.manifest import Precision, Quantization
from runtimes.registry import open_runtime
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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that training made, with the graphs that its exports share."""
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


@pytest.mark.parametrize(
    ("precision", "quantization", "runtime"),
    [
        pytest.param("fp32", None, "onnx-cpu", marks=pytest.mark.slow),
        pytest.param("fp16", None, "onnx-cpu", marks=pytest.mark.slow),
        pytest.param("bf16", None, "openvino", marks=[pytest.mark.bf16, pytest.mark.slow]),
        ("int8", "static", "onnx-cpu"),
        pytest.param("int8", "dynamic", "onnx-cpu", marks=pytest.mark.slow),
    ],
)
def test_a_trained_text_model_answers_in_every_precision(
    run: Path,
    tmp_path: Path,
    precision: Precision,
    quantization: Quantization | None,
    runtime: str,
) -> None:
    arguments = [str(run), "--output", str(tmp_path / "out"), "--precision", precision]
    assert main(arguments + (["--quantization", quantization] if quantization else [])) == 0
    artifact = open_artifact(tmp_path / "out")
    parity = artifact.manifest.parity
    figures = parity.formats["model.onnx"]
    assert (figures.precision, figures.runtime) == (precision, runtime)
    assert parity.samples == (1300 - 256 if quantization == "static" else 1300)
    assert figures.top1_mismatches <= (0 if precision == "fp32" else 0.005 * parity.samples)
    assert parity.accuracy is not None and figures.accuracy is not None
    assert parity.accuracy > 0.95 and abs(figures.accuracy - parity.accuracy) <= 0.003
    for name in ("model.torchscript.pt", "model.pt2"):
        assert parity.formats[name].top1_mismatches == 0
        assert parity.formats[name].max_abs_diff <= 1e-4
    tokens, mask = artifact.tokenizer().encode(["a lovely film", "so boring and bad"], 12)
    answers = open_runtime(artifact, name=runtime, threads=1).predict(
        {"tokens": tokens, "mask": mask}
    )
    assert [artifact.labels[index] for index in answers.argmax(1)] == ["pos", "neg"]

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file

from export.artifact import Artifact, ArtifactError, open_artifact
from export.runtime import open_runtime


def test_runtime_repeats_the_logits_of_the_probe(artifact: Artifact) -> None:
    probe = load_file(artifact.file("probe.safetensors"))
    runtime = open_runtime(artifact, threads=1)
    assert (runtime.name, runtime.precision) == ("onnx-cpu", "fp32")
    assert len(probe["images"]) == 8
    np.testing.assert_allclose(runtime.predict(probe["images"]), probe["logits"], atol=1e-4)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_a_prediction_does_not_depend_on_its_batch(artifact: Artifact, batch_size: int) -> None:
    images = np.random.default_rng(0).random((batch_size, 1, 28, 28), np.float32)
    runtime = open_runtime(artifact, threads=1)
    logits = runtime.predict(images)
    assert logits.shape == (batch_size, 5)
    alone = np.concatenate([runtime.predict(image[None]) for image in images])
    np.testing.assert_allclose(logits, alone, atol=1e-4)


def test_logits_are_the_callers_own(artifact: Artifact) -> None:
    runtime = open_runtime(artifact, threads=1)
    images = np.zeros((2, 1, 28, 28), np.float32)
    first = runtime.predict(images)
    kept = first.copy()
    first[:] = 7
    assert first.flags.c_contiguous and first.flags.owndata
    np.testing.assert_array_equal(runtime.predict(images), kept)


def test_an_array_that_is_not_contiguous_is_read_right(artifact: Artifact) -> None:
    images = np.random.default_rng(0).random((4, 1, 28, 28), np.float32)
    runtime = open_runtime(artifact, threads=1)
    flipped = images[..., ::-1]
    np.testing.assert_array_equal(runtime.predict(flipped), runtime.predict(flipped.copy()))


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((1, 1, 28, 28), np.float64, "inputs must be float32, got float64"),
        ((1, 1, 28, 27), np.float32, "inputs must be"),
        ((1, 28, 28), np.float32, "inputs must be"),
        ((0, 1, 28, 28), np.float32, "inputs must be"),
    ],
)
def test_a_wrong_input_is_refused(
    artifact: Artifact, shape: tuple[int, ...], dtype: type, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        open_runtime(artifact, threads=1).predict(np.zeros(shape, dtype))


def test_an_unknown_engine_and_no_threads_are_refused(artifact: Artifact) -> None:
    with pytest.raises(ValueError, match="name must be one of onnx-cpu, got 'abacus'"):
        open_runtime(artifact, name="abacus")
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        open_runtime(artifact, threads=0)


@pytest.mark.parametrize("key", ["weights_sha256", "config_sha256"])
def test_a_graph_of_another_model_is_refused(
    artifact_folder: Path, edit_manifest: Callable[..., None], key: str
) -> None:
    graph = onnx.load(artifact_folder / "model.onnx")
    for entry in graph.metadata_props:
        if entry.key == key:
            entry.value = "0" * 64
    (artifact_folder / "model.onnx").write_bytes(graph.SerializeToString())
    edit_manifest(artifact_folder)
    with pytest.raises(ArtifactError, match=f"exported from another model: its {key} differs"):
        open_runtime(open_artifact(artifact_folder), threads=1)


def test_a_graph_that_no_engine_accepts_is_refused(
    artifact_folder: Path, edit_manifest: Callable[..., None]
) -> None:
    graph = onnx.load(artifact_folder / "model.onnx")
    graph.graph.node[5].op_type = "Nonsense"
    (artifact_folder / "model.onnx").write_bytes(graph.SerializeToString())
    edit_manifest(artifact_folder)
    with pytest.raises(ArtifactError, match="model.onnx cannot be opened"):
        open_runtime(open_artifact(artifact_folder), threads=1)

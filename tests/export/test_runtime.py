from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file

from export.runtime import open_runtime
from runtimes.artifact import Artifact, ArtifactError, open_artifact


def test_runtime_repeats_the_logits_of_the_probe(artifact: Artifact) -> None:
    probe = load_file(artifact.file("probe.safetensors"))
    runtime = open_runtime(artifact, threads=1)
    assert (runtime.name, runtime.precision) == ("onnx-cpu", "fp32")
    images = probe["images"].astype(np.float32) / np.float32(255)
    np.testing.assert_allclose(runtime.predict(images), probe["logits"], atol=1e-4)


def test_an_unknown_engine_and_no_threads_are_refused(artifact: Artifact) -> None:
    with pytest.raises(ValueError, match="name must be one of auto, onnx-cpu, .* got 'abacus'"):
        open_runtime(artifact, name="abacus")
    with pytest.raises(ValueError, match="precision must be exact or fast, got 'bf16'"):
        open_runtime(artifact, precision="bf16")  # pyright: ignore[reportArgumentType]  the point
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

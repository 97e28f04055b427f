from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save_file

from runtimes.artifact import Artifact, ArtifactError, open_artifact
from runtimes.probe import Probe, read_probe, write_probe
from runtimes.registry import open_runtime

SHIPPED = Path(__file__).parents[2] / "artifacts"


def test_probe_is_stored_in_8_bit_with_the_logits_of_the_model(artifact: Artifact) -> None:
    probe = read_probe(artifact)
    assert len(probe) == 200
    assert probe.inputs["images"].dtype == np.uint8
    runtime = open_runtime(artifact, threads=1)
    sizes = []
    for feed, logits in probe.batches(64):
        np.testing.assert_allclose(runtime.predict(feed["images"]), logits, atol=1e-4)
        sizes.append(len(logits))
    assert sizes == [64, 64, 64, 8]
    head = read_probe(artifact, 8)
    np.testing.assert_array_equal(head.inputs["images"], probe.inputs["images"][:8])
    np.testing.assert_array_equal(head.logits, probe.logits[:8])


@pytest.mark.parametrize("name", ["fashion-dot", "fashion-elliptical", "fashion-elliptical-adv"])
def test_a_probe_of_floats_still_opens(name: str) -> None:
    artifact = open_artifact(SHIPPED / name)
    (feed, logits), *rest = read_probe(artifact).batches(64)
    assert feed["images"].dtype == np.float32 and not rest
    assert len(logits) == 8 and logits.shape[1] == len(artifact.labels)


IMAGES, LOGITS = np.zeros((2, 1, 28, 28), np.uint8), np.zeros((2, 5), np.float32)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": IMAGES}, "holds no inputs with logits"),
        ({"logits": LOGITS}, "must hold images and as many logits"),
        ({"images": IMAGES[:1], "logits": LOGITS}, "must hold images and as many logits"),
        ({"images": IMAGES, "logits": LOGITS[:, :4]}, "must have 5 logits an input"),
        ({"images": IMAGES[:0], "logits": LOGITS[:0]}, "as many logits, at least 1"),
        ({"images": np.array(1.0), "logits": np.array(1.0)}, "as many logits, at least 1"),
        ({"images": IMAGES, "logits": LOGITS * np.nan}, "must have finite float32 logits"),
    ],
)
def test_a_probe_that_does_not_fit_is_refused(
    artifact_folder: Path,
    edit_manifest: Callable[..., None],
    arrays: dict[str, np.ndarray],
    message: str,
) -> None:
    save_file(arrays, artifact_folder / "probe.safetensors")
    edit_manifest(artifact_folder)
    with pytest.raises(ArtifactError, match=message):
        read_probe(open_artifact(artifact_folder))


@pytest.mark.parametrize(("largest", "stored"), [(8000, np.uint16), (70_000, np.int32)])
def test_token_ids_are_stored_small_and_read_as_int64(largest: int, stored: type) -> None:
    inputs = {"tokens": np.array([[1, largest]]), "mask": np.ones((1, 2), bool)}
    probe = Probe(inputs=inputs, logits=np.zeros((1, 2), np.float32))
    arrays = load(write_probe(probe))
    assert arrays["tokens"].dtype == stored
    feed, _ = next(Probe(inputs={"tokens": arrays["tokens"]}, logits=probe.logits).batches(1))
    assert feed["tokens"].dtype == np.int64 and feed["tokens"].tolist() == [[1, largest]]


def test_a_probe_that_changed_is_refused(artifact_folder: Path) -> None:
    opened = open_artifact(artifact_folder)
    with (artifact_folder / "probe.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ArtifactError, match="sha256"):
        read_probe(opened, 8)

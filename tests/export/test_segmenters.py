"""Artifacts of segmenters: what is exported, compared, opened and told of them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from data.sets import IGNORED
from export.card import CARD_TEXT
from export.inspect import compare_answers, inspect_artifact
from export.parity import Candidate, measure, require
from export.run import open_run
from export.samples import Samples, open_samples
from models.inference.windows import segment
from runtimes.artifact import Artifact, ArtifactError
from runtimes.gate import require_parity
from runtimes.manifest import PROBE, Manifest
from runtimes.probe import Probe, read_probe, write_probe
from runtimes.registry import open_runtime
from runtimes.tasks import IMAGES, MASKS, TASKS
from runtimes.torch_model import load_torch_model
from tests.exported import with_file

SHAPE = (3, 8, 8)


@pytest.mark.parametrize("name", ["onnx-cpu", "openvino", "torchscript"])
def test_every_runtime_answers_each_pixel_as_the_model(mask_artifact: Artifact, name: str) -> None:
    runtime = open_runtime(mask_artifact, name=name, threads=1)
    require_parity(runtime, mask_artifact)
    images = np.random.default_rng(0).random((5, 1, 8, 8), np.float32)
    logits = runtime.predict(images)
    model = load_torch_model(mask_artifact)
    with torch.no_grad():
        expected = segment(model, torch.from_numpy(images)).numpy()  # pyright: ignore[reportArgumentType] - a segmenter
    assert logits.shape == (5, *SHAPE) and np.abs(logits - expected).max() < 1e-4
    alone = np.concatenate([runtime.predict(image[None]) for image in images])
    assert np.abs(alone - logits).max() < 1e-4


def test_manifest_tells_the_task_and_the_shape_of_the_answer(mask_artifact: Artifact) -> None:
    manifest = mask_artifact.manifest
    assert manifest.task == MASKS and manifest.output.shape == [-1, *SHAPE]
    parity = manifest.parity
    assert parity.samples == 1000 and parity.accuracy is not None and 0 < parity.accuracy < 1
    assert {each.top1_mismatches for each in parity.formats.values()} == {0}
    fields = json.loads(manifest.to_json())
    for shape in ([-1, 3], [-1, 3, 8, 4], [-1, 2, 8, 8]):
        with pytest.raises(ValueError, match="output.shape must be"):
            Manifest.model_validate(fields | {"output": fields["output"] | {"shape": shape}})
    assert read_probe(mask_artifact).logits.shape == (8, *SHAPE)


def test_card_and_inspection_speak_of_a_segmenter(mask_artifact: Artifact) -> None:
    card = (mask_artifact.folder / CARD_TEXT).read_text()
    assert "Image segmenter (segmenter_tiny_elliptical, elliptical attention)" in card
    assert "image-segmentation" in inspect_artifact(mask_artifact)
    same = compare_answers(mask_artifact, mask_artifact)
    assert (same.samples, same.same, same.largest) == (8, 8, 0.0)


def test_an_artifact_whose_stored_logits_are_of_whole_images_is_refused(
    mask_artifact: Artifact, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(mask_artifact.folder, tmp_path / "copy"))
    probe = read_probe(mask_artifact)
    other = write_probe(Probe(inputs=probe.inputs, logits=probe.logits[..., 0, 0]))
    with pytest.raises(
        ArtifactError, match="probe.safetensors must have 3 x 8 x 8 logits an input"
    ):
        read_probe(with_file(folder, PROBE, other))


def test_samples_are_those_held_out_with_their_masks(
    mask_run_folder: Path, masks_folder: Path
) -> None:
    run = open_run(mask_run_folder)
    samples = open_samples(run, limit=10)
    assert samples.labels is not None and samples.labels.shape == (10, 8, 8)
    assert set(np.unique(samples.labels).tolist()) == {0, 1, 2, IGNORED}
    given = open_samples(run, str(masks_folder), limit=20)
    assert len(given) == 12 and "held-out" in samples.description
    run.recipe["data"]["valid"] = None
    with pytest.raises(ValueError, match="has no valid split"):
        open_samples(run, limit=10)


def test_parity_of_masks_counts_images_in_which_many_pixels_change() -> None:
    logits = np.zeros((1000, 2, 20, 20), np.float32)
    logits[:, 0] = 1e-6
    labels = np.zeros((1000, 20, 20), np.uint8)
    labels[:, 10:] = IGNORED
    samples = Samples(
        inputs=np.zeros((1000, 1, 20, 20), np.uint8),
        labels=labels,
        description="noise",
        task=TASKS[MASKS],
    )
    few, many = logits.copy(), logits.copy()
    few[:, 0, 0, :2], few[:, 1, 0, :2] = 0, 1e-6
    many[:3, 0, 0, :3], many[:3, 1, 0, :3] = 0, 1e-6
    found = measure(
        logits,
        {
            "few": Candidate(predict=lambda feed: few[: len(feed["images"])], runtime="x"),
            "many": Candidate(predict=lambda feed: many[: len(feed["images"])], runtime="x"),
        },
        samples,
    )
    assert found.accuracy == 1.0
    assert found.formats["few"].top1_mismatches == 0
    assert found.formats["few"].accuracy == pytest.approx(1 - 2 / 200)
    with pytest.raises(ValueError, match="many: .* samples change their class"):
        require(found)
    assert TASKS[MASKS].changed(many, logits, {}).sum() == 3
    assert TASKS[IMAGES].changed(many[:, :, 0, 0], logits[:, :, 0, 0], {}).sum() == 3

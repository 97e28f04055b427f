import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from export.graphs import open_graph
from export.run import open_run
from runtimes.artifact import Artifact, ArtifactError, open_artifact
from runtimes.probe import read_probe

Edit = Callable[..., None]


@pytest.fixture
def folder(text_artifact: Artifact, tmp_path: Path) -> Path:
    return Path(shutil.copytree(text_artifact.folder, tmp_path / "copy"))


def test_manifest_describes_tokens_and_their_mask(text_artifact: Artifact) -> None:
    manifest = text_artifact.manifest
    assert manifest.task == "text-classification"
    assert manifest.model_dump(mode="json")["input"] == {
        "name": "tokens",
        "dtype": "int64",
        "shape": [-1, -1],
        "range": [0, 59],
        "mask": "mask",
    }
    assert text_artifact.text_spec.max_len == 12
    assert manifest.parity.samples == 1050
    assert all(figures.top1_mismatches == 0 for figures in manifest.parity.formats.values())


def test_probe_holds_tokens_masks_and_logits(text_artifact: Artifact) -> None:
    probe = read_probe(text_artifact)
    assert len(probe) == 200
    answer = open_graph(text_artifact.read("model.onnx"), "fp32")
    for feed, logits in probe.batches(64):
        assert feed["tokens"].dtype == np.int64 and feed["mask"].dtype == np.bool_
        np.testing.assert_allclose(answer(feed), logits, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preprocessing": {"max_len": 13}}, "max_len must be at most seq_len 12, got 13"),
        ({"preprocessing": {"max_len": 0}}, "max_len must be an integer >= 1, got 0"),
        ({"preprocessing": {"height": 3}}, "preprocessing must have the fields of a text input"),
        ({"input": {"name": "tokens", "range": [0, 7]}}, "input.range must be that of the vocab"),
        ({"task": "image-classification"}, "preprocessing must have the fields of an image input"),
    ],
)
def test_a_wrong_field_is_refused(
    folder: Path, edit_manifest: Edit, changes: dict, message: str
) -> None:
    edit_manifest(folder, **changes)
    with pytest.raises(ArtifactError, match=message):
        open_artifact(folder)


def change_vocabulary(text: str) -> str:
    fields = json.loads(text)
    vocabulary = fields["model"]["vocab"]
    fields["model"]["vocab"] = vocabulary | {f"word{i}": 60 + i for i in range(3)}
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "{}", "tokenizer.json is not a readable tokenizer"),
        (lambda text: text.replace("[PAD]", "[FILL]"), "the tokenizer has none of the padding"),
        (change_vocabulary, "tokenizer.json has ids up to 62, the model up to 59"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(
    folder: Path, edit_manifest: Edit, change: Callable[[str], str], message: str
) -> None:
    path = folder / "tokenizer.json"
    path.write_text(change(path.read_text()))
    edit_manifest(folder)
    with pytest.raises(ArtifactError, match=message):
        open_artifact(folder).tokenizer()


def test_a_run_without_its_tokenizer_or_on_neither_images_nor_texts_is_refused(
    text_run_folder: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(text_run_folder, tmp_path / "run"))
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="holds no finished run: tokenizer.json is missing"):
        open_run(copy)
    recipe = (copy / "recipe.yaml").read_text().replace("  tokenizer: wordpiece\n", "")
    (copy / "recipe.yaml").write_text(recipe)
    with pytest.raises(ValueError, match="must be a run on images or on texts"):
        open_run(copy)

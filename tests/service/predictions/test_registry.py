import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from runtimes.artifact import Artifact, open_artifact
from runtimes.registry import installed
from service.predictions.registry import Registry, check_models
from service.settings import Settings
from tests.service.tiny_artifact import copy_artifact


def test_a_bare_name_is_the_highest_version(
    tiny_artifact: Artifact, settings: Settings, tmp_path: Path
) -> None:
    for version in ("9", "10", "10.rc", "2"):
        copy_artifact(tiny_artifact, tmp_path / version, version=version)
    registry = Registry.open(settings.model_copy(update={"models": [tmp_path]}))
    assert registry.get().artifact.version == "10.rc"
    assert registry.get("fashion-elliptical:9").artifact.version == "9"
    assert len(registry.all()) == 4
    registry.close()


def test_own_default_must_be_served_and_the_shipped_one_need_not(
    tiny_models: Path, tmp_path: Path
) -> None:
    only_dot = [open_artifact(tiny_models / "dot")]
    registry = Registry(only_dot, Settings(state=tmp_path, runtime="onnx-cpu"))
    assert registry.get().artifact.name == "fashion-dot"
    registry.close()
    with pytest.raises(ValueError, match="ASSAY_DEFAULT_IMAGE.*fashion-dot.*nope"):
        Registry(only_dot, Settings(state=tmp_path, runtime="onnx-cpu", default_image="nope"))


def test_a_runtime_that_is_not_there_is_said_before_the_start(settings: Settings) -> None:
    if "onnx-cuda" in installed():
        pytest.skip("CUDA is here")
    absent = settings.model_copy(update={"runtime": "onnx-cuda"})
    message = "ASSAY_RUNTIME=onnx-cuda: .* is not available: .*; installed: onnx-cpu"
    with pytest.raises(ValueError, match=message):
        check_models(absent)


@pytest.mark.parametrize(
    ("model", "file", "content", "listed", "runtime", "message"),
    [
        ("dot", "model.onnx", b"x", False, "auto", "model.onnx"),
        ("dot", "model.onnx", b"", True, "onnx-cpu", "fashion-dot: model.onnx cannot be opened"),
        ("transject", "tokenizer.json", b"{}", True, "auto", "tokenizer.json is not a readable"),
        ("dot", "probe.safetensors", None, True, "openvino", "openvino: .* fashion-dot: openvino"),
    ],
)
def test_what_no_worker_could_serve_is_said_before_the_start(
    tiny_models: Path,
    tmp_path: Path,
    model: str,
    file: str,
    content: bytes | None,
    listed: bool,
    runtime: Any,
    message: str,
) -> None:
    """A damaged file, also where the manifest lists it so; None is another model's."""
    folder = tmp_path / "models" / model
    shutil.copytree(tiny_models / model, folder)
    content = (tiny_models / "elliptical" / file).read_bytes() if content is None else content
    (folder / file).write_bytes(content)
    fields = json.loads((folder / "manifest.json").read_text())
    if listed:
        fields["files"][file] = hashlib.sha256(content).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=message):
        check_models(Settings(models=[folder], state=tmp_path / "state", runtime=runtime))


def test_models_that_cannot_be_served_together_are_refused(
    settings: Settings, tiny_models: Path, tmp_path: Path
) -> None:
    for models, message in (
        ([tiny_models, tiny_models], "ASSAY_MODELS must hold a version once"),
        ([tmp_path], "ASSAY_MODELS=/.* holds no artifact, a folder with manifest.json"),
        ([tmp_path / "none"], "ASSAY_MODELS=/.*none: none is not a folder of artifacts"),
    ):
        with pytest.raises(ValueError, match=message):
            Registry.open(settings.model_copy(update={"models": models}))

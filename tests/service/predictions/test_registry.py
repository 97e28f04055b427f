import asyncio
import hashlib
import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from runtimes.artifact import Artifact, ArtifactError, find_artifacts, open_artifact
from runtimes.registry import installed
from service.api.models import sample_index
from service.http.errors import ApiError
from service.predictions.registry import Registry, check_models
from service.settings import Settings


def _version(artifact: Artifact, folder: Path, version: str) -> Artifact:
    """The same model under another version."""
    shutil.copytree(artifact.folder, folder / version)
    manifest = folder / version / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": version}))
    return open_artifact(folder / version)


def test_a_bare_name_is_the_highest_version(
    tiny_artifact: Artifact, settings: Settings, tmp_path: Path
) -> None:
    versions = ["9", "10", "10.rc", "2"]
    registry = Registry([_version(tiny_artifact, tmp_path, v) for v in versions], settings)
    assert registry.get().artifact.version == "10.rc"
    assert registry.get("fashion-elliptical:9").artifact.version == "9"
    assert len(registry.all()) == 4
    with pytest.raises(ApiError) as unknown:
        registry.get("fashion-elliptical:11")
    assert (unknown.value.status, unknown.value.code) == (404, "unknown_model")
    registry.close()


def test_one_version_twice_is_refused(tiny_artifact: Artifact, settings: Settings) -> None:
    with pytest.raises(ValueError, match="ASSAY_MODELS.*once.*fashion-elliptical:1"):
        Registry([tiny_artifact, tiny_artifact], settings)


def test_nothing_to_serve_is_refused(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one artifact"):
        Registry(find_artifacts([tmp_path]), settings)


def test_missing_folder_is_refused(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        Registry.open(settings.model_copy(update={"models": [tmp_path / "none"]}))


def test_own_default_must_be_served_and_the_shipped_one_need_not(
    tiny_models: Path, tmp_path: Path
) -> None:
    only_dot = [open_artifact(tiny_models / "dot")]
    registry = Registry(only_dot, Settings(state=tmp_path, runtime="onnx-cpu"))
    assert registry.get().artifact.name == "fashion-dot"
    registry.close()
    with pytest.raises(ValueError, match="ASSAY_DEFAULT_IMAGE.*fashion-dot.*nope"):
        Registry(only_dot, Settings(state=tmp_path, runtime="onnx-cpu", default_image="nope"))


def test_damaged_artifact_is_not_served(tiny_models: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_models / "dot", tmp_path / "dot")
    with (tmp_path / "dot" / "model.onnx").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ArtifactError, match="model.onnx"):
        Registry.open(Settings(models=[tmp_path], state=tmp_path))


def test_warm_up_runs_every_model(settings: Settings) -> None:
    registry = Registry.open(settings)
    asyncio.run(registry.warm_up())
    registry.close()


def test_samples_may_be_missing(settings: Settings, tmp_path: Path) -> None:
    registry = Registry.open(settings)
    assert sample_index(tmp_path / "none", registry) == []
    registry.close()


def test_a_runtime_that_is_not_there_is_said_before_the_start(settings: Settings) -> None:
    if "onnx-cuda" in installed():
        pytest.skip("CUDA is here")
    absent = settings.model_copy(update={"runtime": "onnx-cuda"})
    message = "ASSAY_RUNTIME=onnx-cuda: .* is not available: .*; installed: onnx-cpu"
    with pytest.raises(ValueError, match=message):
        check_models(absent)


def test_a_runtime_that_cannot_serve_a_model_is_said_before_the_start(
    settings: Settings, tiny_models: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_models, tmp_path / "models")
    folder = tmp_path / "models" / "dot"
    other = load_file(tiny_models / "elliptical" / "probe.safetensors")
    save_file(other, folder / "probe.safetensors")
    fields = json.loads((folder / "manifest.json").read_text())
    content = (folder / "probe.safetensors").read_bytes()
    fields["files"]["probe.safetensors"] = hashlib.sha256(content).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(fields))
    wrong = settings.model_copy(update={"runtime": "openvino", "models": [tmp_path / "models"]})
    with pytest.raises(ValueError, match="ASSAY_RUNTIME=openvino: .* fashion-dot: openvino fp32"):
        check_models(wrong)


def test_what_no_worker_could_open_is_said_before_the_start(
    settings: Settings, tiny_models: Path, tmp_path: Path
) -> None:
    twice = settings.model_copy(update={"models": [tiny_models, tiny_models]})
    with pytest.raises(ValueError, match="ASSAY_MODELS must hold a version once"):
        check_models(twice)
    folder = tmp_path / "models" / "dot"
    shutil.copytree(tiny_models / "dot", folder)
    fields = json.loads((folder / "manifest.json").read_text())
    (folder / "model.onnx").write_bytes(b"")
    fields["files"]["model.onnx"] = hashlib.sha256(b"").hexdigest()
    (folder / "manifest.json").write_text(json.dumps(fields))
    broken = settings.model_copy(update={"models": [folder], "runtime": "onnx-cpu"})
    with pytest.raises(ValueError, match="fashion-dot: model.onnx cannot be opened"):
        check_models(broken)


def test_a_tokenizer_that_is_not_the_models_is_said_before_the_start(
    settings: Settings, tiny_models: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "models" / "transject"
    shutil.copytree(tiny_models / "transject", folder)
    fields = json.loads((folder / "manifest.json").read_text())
    (folder / "tokenizer.json").write_bytes(b"{}")
    fields["files"]["tokenizer.json"] = hashlib.sha256(b"{}").hexdigest()
    (folder / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=f"{fields['name']}: tokenizer.json is not a readable"):
        check_models(settings.model_copy(update={"models": [folder]}))

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from runtimes.artifact import MANIFEST, Artifact, ArtifactError, find_artifacts, open_artifact

Edit = Callable[..., None]


def fields_of(folder: Path) -> dict:
    return json.loads((folder / MANIFEST).read_text())


def with_file_named(folder: Path, name: str) -> dict[str, str]:
    return fields_of(folder)["files"] | {name: "0" * 64}


def test_digest_is_the_sha256_of_the_manifest(artifact: Artifact) -> None:
    content = (artifact.folder / MANIFEST).read_bytes()
    assert artifact.digest == hashlib.sha256(content).hexdigest()
    assert (artifact.name, artifact.version) == ("tiny-elliptical", "1")
    assert len(artifact.labels) == 5
    assert artifact.image_spec.height == 28


def test_reading_an_unlisted_file_is_refused(artifact: Artifact) -> None:
    with pytest.raises(ArtifactError, match="card.json is not a file of the artifact"):
        artifact.file("card.json")


@pytest.mark.parametrize(
    "name",
    ["model.onnx", "model.torchscript.pt", "model.pt2", "weights.safetensors", "probe.safetensors"],
)
def test_a_changed_byte_is_refused(artifact_folder: Path, name: str) -> None:
    content = bytearray((artifact_folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (artifact_folder / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=f"{name} does not have the sha256"):
        open_artifact(artifact_folder)


def test_a_change_after_opening_is_refused(reopened: Artifact) -> None:
    (reopened.folder / "model.onnx").write_bytes(b"other")
    with pytest.raises(ArtifactError, match="model.onnx does not have the sha256"):
        reopened.read("model.onnx")


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2"])
def test_a_link_is_refused_even_with_the_right_content(artifact_folder: Path, name: str) -> None:
    path = artifact_folder / name
    path.rename(artifact_folder.parent / "elsewhere")
    path.symlink_to(artifact_folder.parent / "elsewhere")
    with pytest.raises(ArtifactError, match=f"{name} must be a file, not a link"):
        open_artifact(artifact_folder)


def test_a_linked_card_is_refused_though_nothing_verifies_it(artifact_folder: Path) -> None:
    (artifact_folder / "card.md").unlink(missing_ok=True)
    (artifact_folder / "card.md").symlink_to("/etc/hostname")
    with pytest.raises(ArtifactError, match="card.md must be a file, not a link"):
        open_artifact(artifact_folder)


def test_a_linked_manifest_is_refused(artifact_folder: Path) -> None:
    path = artifact_folder / MANIFEST
    path.rename(artifact_folder.parent / MANIFEST)
    path.symlink_to(artifact_folder.parent / MANIFEST)
    with pytest.raises(ArtifactError, match="manifest.json must be a file, not a link"):
        open_artifact(artifact_folder)


@pytest.mark.parametrize(
    "name", ["../weights", "..", "/etc/passwd", "sub/model.onnx", "a\\b", "", ".hidden", "a\nb"]
)
def test_a_name_that_is_not_plain_is_refused(
    artifact_folder: Path, edit_manifest: Edit, name: str
) -> None:
    edit_manifest(artifact_folder, files=with_file_named(artifact_folder, name))
    with pytest.raises(ArtifactError, match="files must have plain names"):
        open_artifact(artifact_folder)


def test_a_missing_file_is_refused(artifact_folder: Path) -> None:
    (artifact_folder / "probe.safetensors").unlink()
    with pytest.raises(ArtifactError, match="^probe.safetensors is missing$"):
        open_artifact(artifact_folder)


def test_an_unlisted_file_is_refused(artifact_folder: Path) -> None:
    (artifact_folder / "model.onnx.data").write_bytes(b"1")
    with pytest.raises(ArtifactError, match="model.onnx.data lies in the artifact"):
        open_artifact(artifact_folder)


def test_a_required_file_must_be_listed(artifact_folder: Path, edit_manifest: Edit) -> None:
    files = fields_of(artifact_folder)["files"]
    del files["weights.safetensors"]
    edit_manifest(artifact_folder, files=files)
    with pytest.raises(ArtifactError, match="missing weights.safetensors"):
        open_artifact(artifact_folder)


@pytest.mark.parametrize("location", ["../../etc/passwd", "/etc/passwd", "weights.safetensors"])
def test_external_data_is_refused(
    artifact_folder: Path, edit_manifest: Edit, location: str
) -> None:
    graph = onnx.load(artifact_folder / "model.onnx")
    tensor = next(t for t in graph.graph.initializer if t.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    (artifact_folder / "model.onnx").write_bytes(graph.SerializeToString())
    edit_manifest(artifact_folder)
    with pytest.raises(ArtifactError, match="model.onnx must be a readable graph without external"):
        open_artifact(artifact_folder)


def test_a_graph_that_cannot_be_parsed_is_refused(
    artifact_folder: Path, edit_manifest: Edit
) -> None:
    (artifact_folder / "model.onnx").write_bytes(b"\xff" * 100)
    edit_manifest(artifact_folder)
    with pytest.raises(ArtifactError, match="model.onnx must be a readable graph"):
        open_artifact(artifact_folder)


@pytest.mark.parametrize("version", [0, 2, "1", None, True])
def test_an_unknown_schema_version_is_refused(
    artifact_folder: Path, edit_manifest: Edit, version: object
) -> None:
    edit_manifest(artifact_folder, schema_version=version)
    with pytest.raises(ArtifactError, match="schema_version must be 1, got"):
        open_artifact(artifact_folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"surprise": 1}, "surprise: Extra inputs are not permitted"),
        ({"name": "../x"}, "name: String should match"),
        ({"name": "x" * 65}, "name: String should match"),
        ({"labels": ["a", "a", "b", "c", "d"]}, "labels must be distinct"),
        ({"labels": ["a", "b"]}, r"output.shape must be \[-1, 2\]"),
        ({"precision": "fp64"}, "precision: Input should be 'fp32', 'fp16'"),
        ({"precision": "int8"}, "quantization must be given for int8 alone, got None for int8"),
        ({"quantization": "static"}, "quantization must be given for int8 alone, got static for"),
        ({"task": "text-classification"}, "missing tokenizer.json"),
        ({"task": "regression"}, "task: Input should be"),
        ({"preprocessing": {"channels": 1}}, "preprocessing must have the fields"),
        (
            {"preprocessing": {"channels": 2, "height": 28, "width": 28}},
            "channels must be 1 or 3, got 2",
        ),
        ({"preprocessing": {"channels": 1, "height": 32, "width": 28}}, "input.shape must be"),
        ({"parity": {"samples": 0, "data": "", "tolerance": 1, "formats": {}}}, "parity.samples"),
    ],
)
def test_a_wrong_field_is_refused(
    artifact_folder: Path, edit_manifest: Edit, changes: dict, message: str
) -> None:
    edit_manifest(artifact_folder, **changes)
    with pytest.raises(ArtifactError, match=message) as refusal:
        open_artifact(artifact_folder)
    assert str(artifact_folder) not in str(refusal.value)


def test_a_linked_folder_is_refused(artifact: Artifact, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(artifact.folder)
    with pytest.raises(ArtifactError, match="^link must be a folder, not a link$"):
        open_artifact(tmp_path / "link")
    with pytest.raises(ArtifactError, match="^link: link must be a folder, not a link$"):
        find_artifacts([tmp_path])


def test_a_folder_inside_is_refused(artifact_folder: Path) -> None:
    (artifact_folder / "model.onnx").unlink()
    (artifact_folder / "model.onnx").mkdir()
    with pytest.raises(ArtifactError, match="^model.onnx is missing$"):
        open_artifact(artifact_folder)


def test_a_huge_manifest_is_refused_unread(artifact_folder: Path) -> None:
    with (artifact_folder / MANIFEST).open("r+b") as file:
        file.truncate(2**40)  # bytes of a hole: reading them would need a terabyte
    with pytest.raises(ArtifactError, match="manifest.json must be at most 16777216 bytes"):
        open_artifact(artifact_folder)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": "\\ud800"}',
        '{"a": 1, "a": 2}',
        '{"files": {"x": 1, "x": 2}}',
        "\xff",
        "[" * 100_000,
        f'{{"a": {"9" * 5000}}}',
    ],
    ids=lambda text: text[:24],
)
def test_a_manifest_that_is_no_json_object_is_refused(artifact_folder: Path, text: str) -> None:
    (artifact_folder / MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(ArtifactError, match=r"^manifest.json (is not valid JSON|must be a JSON)"):
        open_artifact(artifact_folder)


def test_a_missing_folder_is_refused_without_its_path(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="^absent is not an artifact"):
        open_artifact(tmp_path / "absent")


def test_a_card_of_another_digest_is_not_shown(reopened: Artifact) -> None:
    assert reopened.card is not None
    path = reopened.folder / "card.json"
    path.write_text(path.read_text().replace(reopened.digest, "0" * 64))
    assert open_artifact(reopened.folder).card is None


def test_artifacts_are_found_in_a_folder_of_them(artifact: Artifact, tmp_path: Path) -> None:
    for name in ("b", "a"):
        shutil.copytree(artifact.folder, tmp_path / name)
    (tmp_path / "samples").mkdir()
    (tmp_path / "LICENSE").write_text("text")
    found = find_artifacts([tmp_path, artifact.folder])
    assert [item.folder for item in found] == [tmp_path / "a", tmp_path / "b", artifact.folder]


def test_one_broken_artifact_fails_the_search(artifact_folder: Path) -> None:
    (artifact_folder / "model.onnx").unlink()
    with pytest.raises(ArtifactError, match="model.onnx is missing"):
        find_artifacts([artifact_folder.parent])


def test_a_missing_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such folder"):
        find_artifacts([tmp_path / "absent"])


def test_opening_and_predicting_need_no_torch() -> None:
    code = (
        "import sys, runtimes.artifact, runtimes.registry, export.select, runtimes.threads;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

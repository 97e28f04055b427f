"""What is trusted as an artifact, and what is refused by name."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import models
from models.analysis import bounds, patches, substitutions
from runtimes.artifact import (
    MANIFEST,
    Artifact,
    ArtifactError,
    find_artifacts,
    open_artifact,
    refers_outside,
)
from runtimes.manifest import ONNX, PROBE, Manifest
from runtimes.probe import read_probe
from tests.exported import edit_manifest, with_file

Spoil = Callable[[Path], object]


def test_digest_is_the_sha256_of_the_manifest(artifact: Artifact) -> None:
    content = (artifact.folder / MANIFEST).read_bytes()
    assert artifact.digest == hashlib.sha256(content).hexdigest()
    assert (artifact.name, artifact.version) == ("tiny-elliptical", "1")
    assert len(artifact.labels) == 5
    assert artifact.image_spec.height == 28
    with pytest.raises(ArtifactError, match="card.json is not a file of the artifact"):
        artifact.file("card.json")


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def link(path: Path) -> None:
    """A link to the right content."""
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(2**40)  # bytes of a hole: reading them would need a terabyte


def make_wide(path: Path) -> None:
    path.write_text(json.dumps({"training": [[]] * 20_000}))


def make_deep(path: Path) -> None:
    path.write_text('{"training": ' + "[" * 400 + "]" * 400 + "}")


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        *(
            (name, change_a_byte, f"{name} does not have the sha256")
            for name in ("model.onnx", "model.torchscript.pt", "model.pt2", "probe.safetensors")
        ),
        *(
            (name, link, f"{name} must be a file, not a link")
            for name in ("model.onnx", "model.pt2", "card.md", MANIFEST)
        ),
        ("probe.safetensors", Path.unlink, "^probe.safetensors is missing$"),
        ("model.onnx", replace_by_folder, "^model.onnx is missing$"),
        ("model.onnx.data", Path.touch, "model.onnx.data lies in the artifact"),
        (MANIFEST, make_huge, "manifest.json must be at most 2000000 bytes"),
        (MANIFEST, make_wide, "^manifest.json must not have more than 100,000 items$"),
        (MANIFEST, make_deep, "^manifest.json must not have more than 64 levels$"),
        (MANIFEST, Path.unlink, "is not an artifact: manifest.json is missing"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused(
    artifact_folder: Path, name: str, spoil: Spoil, message: str
) -> None:
    spoil(artifact_folder / name)
    with pytest.raises(ArtifactError, match=message) as refusal:
        open_artifact(artifact_folder)
    assert str(artifact_folder) not in str(refusal.value)


def test_a_change_after_opening_is_refused(reopened: Artifact) -> None:
    for name, read in ((ONNX, lambda: reopened.read(ONNX)), (PROBE, lambda: read_probe(reopened))):
        (reopened.folder / name).write_bytes(b"other")
        with pytest.raises(ArtifactError, match=f"{name} does not have the sha256"):
            read()


WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "artifact": [
        *(
            ({"files": lambda files, name=name: files | {name: "0" * 64}}, "must have plain names")
            for name in ("../w", "..", "/etc/passwd", "sub/model.onnx", "a\\b", "", ".h", "a\nb")
        ),
        (
            {"files": lambda files: {n: files[n] for n in files if n != "weights.safetensors"}},
            "missing weights.safetensors",
        ),
        *(
            ({"schema_version": version}, "schema_version must be 1, got")
            for version in (0, 2, "1", None, True)
        ),
        ({"architecture": None}, "architecture must be given without a source"),
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
    "imported": [
        ({"source": None}, "missing model.torchscript.pt, weights.safetensors"),
        ({"architecture": "deit_tiny"}, "source must be given without architecture, config and tr"),
        ({"source": lambda source: source | {"sha256": "0" * 64}}, "must be that of model.onnx"),
        ({"files": lambda files: {n: files[n] for n in files if n != "after.onnx"}}, "after.onnx"),
    ],
    "text_artifact": [
        ({"preprocessing": {"max_len": 13}}, "max_len must be at most seq_len 12, got 13"),
        ({"preprocessing": {"max_len": 0}}, "max_len must be an integer >= 1, got 0"),
        ({"preprocessing": {"height": 3}}, "preprocessing must have the fields of a text input"),
        ({"input": {"name": "tokens", "range": [0, 7]}}, "input.range must be that of the vocab"),
        ({"task": "image-classification"}, "preprocessing must have the fields of an image input"),
    ],
}


@pytest.mark.parametrize(
    ("which", "changes", "message"), [(which, *each) for which in WRONG for each in WRONG[which]]
)
def test_a_wrong_field_is_refused(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    which: str,
    changes: dict[str, Any],
    message: str,
) -> None:
    folder = Path(shutil.copytree(request.getfixturevalue(which).folder, tmp_path / "copy"))
    fields = json.loads((folder / MANIFEST).read_text())
    made = {key: each(fields[key]) if callable(each) else each for key, each in changes.items()}
    edit_manifest(folder, **made)
    with pytest.raises(ArtifactError, match=message) as refusal:
        open_artifact(folder)
    assert str(folder) not in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"a": 1e999}',
        '{"a": "\\ud800"}',
        "\xff",
    ],
)
def test_a_manifest_that_is_no_json_object_is_refused(artifact_folder: Path, text: str) -> None:
    (artifact_folder / MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(ArtifactError, match=r"^manifest.json (is not valid JSON|must be a JSON)"):
        open_artifact(artifact_folder)


def outside(location: str = "../weights") -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1])
    tensor.external_data.add(key="location", value=location)
    return tensor


def inner() -> onnx.GraphProto:
    constant = helper.make_node("Constant", [], ["c"], value=outside())
    return helper.make_graph([constant], "inner", [], [])


@pytest.mark.parametrize(
    "place",
    [
        lambda graph: graph.graph.initializer.append(outside()),
        lambda graph: graph.graph.initializer.add(name="w", data_location=TensorProto.EXTERNAL),
        lambda graph: graph.graph.sparse_initializer.add().indices.CopyFrom(outside()),
        lambda graph: graph.graph.node.extend(inner().node),
        lambda graph: graph.graph.node.append(
            helper.make_node("If", ["c"], ["y"], then_branch=inner())
        ),
        lambda graph: graph.functions.add(node=inner().node),
        lambda graph: graph.functions.add(
            attribute_proto=[helper.make_attribute("value", outside())]
        ),
        lambda graph: graph.training_info.add(algorithm=inner()),
    ],
)
def test_data_outside_is_found_wherever_a_graph_can_hold_it(
    place: Callable[[onnx.ModelProto], object],
) -> None:
    graph = helper.make_model(helper.make_graph([], "g", [], []))
    assert not refers_outside(graph.SerializeToString())
    place(graph)
    assert refers_outside(graph.SerializeToString())


@pytest.mark.parametrize("location", ["../../etc/passwd", "/etc/passwd", "weights.safetensors", ""])
def test_a_graph_with_data_outside_or_that_cannot_be_parsed_is_refused(
    artifact_folder: Path, location: str
) -> None:
    def add(graph: onnx.ModelProto) -> None:
        graph.graph.initializer.append(outside(location))

    with pytest.raises(ArtifactError, match="model.onnx must be a readable graph without external"):
        with_file(artifact_folder, ONNX, add if location else b"\xff" * 100)


def test_a_card_of_another_digest_is_not_shown(reopened: Artifact) -> None:
    assert reopened.card is not None
    path = reopened.folder / "card.json"
    path.write_text(path.read_text().replace(reopened.digest, "0" * 64))
    assert open_artifact(reopened.folder).card is None


def test_a_folder_that_is_linked_or_missing_is_refused(artifact: Artifact, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(artifact.folder)
    with pytest.raises(ArtifactError, match="^link must be a folder, not a link$"):
        open_artifact(tmp_path / "link")
    with pytest.raises(ArtifactError, match="^link: link must be a folder, not a link$"):
        find_artifacts([tmp_path])
    with pytest.raises(ArtifactError, match="^absent is not an artifact"):
        open_artifact(tmp_path / "absent")
    with pytest.raises(ArtifactError, match="no such folder"):
        find_artifacts([tmp_path / "absent"])


def test_artifacts_are_found_in_a_folder_of_them_unless_one_is_broken(
    artifact: Artifact, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("b", "a"):
        shutil.copytree(artifact.folder, tmp_path / name)
    (tmp_path / "samples").mkdir()
    (tmp_path / "LICENSE").write_text("text")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.onnx").touch()
    found = find_artifacts([tmp_path, artifact.folder])
    assert [item.folder for item in found] == [tmp_path / "a", tmp_path / "b", artifact.folder]
    assert (
        "mine is not an artifact: manifest.json is missing; `./assay export import`" in caplog.text
    )
    (tmp_path / "b" / "model.onnx").unlink()
    with pytest.raises(ArtifactError, match="model.onnx is missing"):
        find_artifacts([tmp_path])


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
    text_artifact: Artifact, tmp_path: Path, change: Any, message: str
) -> None:
    folder = Path(shutil.copytree(text_artifact.folder, tmp_path / "texts"))
    text = change((folder / "tokenizer.json").read_text())
    with pytest.raises(ArtifactError, match=message):
        with_file(folder, "tokenizer.json", text.encode()).tokenizer()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("transject", {}),
        ("transject_random", {"num_experts": 1}),
        ("transject_random", {"pooling": "max"}),
        ("transject_random", {"towers": 2}),
        ("transject_image", {"num_experts": 1, "random_eigenvalues": True}),
        ("transject_image", {"num_experts": 1}),
        ("transject_image", {"num_experts": 1, "random_eigenvalues": True, "pooling": "max"}),
        ("deit_tiny", {}),
    ],
)
def test_a_manifest_says_whether_proofs_know_the_model(name: str, changes: dict[str, Any]) -> None:
    sizes = {"embed_dim": 8, "depth": 1} if name.startswith("transject") else {}
    sizes |= {"vocab_size": 9, "seq_len": 4} if name in ("transject", "transject_random") else {}
    model = models.build(name, **sizes, **changes)
    known, apart = (
        refusal(model) is None or patches.refusal(model) is None
        for refusal in (bounds.refusal, substitutions.refusal)
    )
    for precision in ("fp32", "int8"):
        config = asdict(models.config(name, **sizes, **changes))
        manifest = Manifest.model_construct(config=config, precision=precision)
        assert manifest.provable == (known and precision == "fp32")
        assert manifest.token_wise == (apart and precision == "fp32")

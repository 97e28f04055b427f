from collections.abc import Iterator
from pathlib import Path

import bentoml
import pytest
from bentoml._internal.configuration.containers import BentoMLContainer
from bentoml._internal.models.model import ModelStore

from export.__main__ import main
from runtimes import store
from runtimes.artifact import Artifact, open_artifact
from runtimes.store import store_artifact
from tests.exported import edit_manifest


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """An empty store; bentoml reads BENTOML_HOME once a process."""
    folder = tmp_path / "bentoml"
    (folder / "models").mkdir(parents=True)
    with BentoMLContainer.model_store.patch(ModelStore(folder / "models")):
        yield folder


def test_artifact_is_stored_once_with_labels_and_metadata(artifact: Artifact, home: Path) -> None:
    assert store_artifact(artifact) == store_artifact(artifact) == "tiny-elliptical:1"
    assert len(bentoml.models.list("tiny-elliptical")) == 1
    stored = bentoml.models.get("tiny-elliptical:1")
    assert stored.info.labels == {"task": "image-classification", "precision": "fp32"}
    assert stored.info.metadata["digest"] == artifact.digest
    assert stored.info.metadata["architecture"] == "deit_tiny_elliptical"
    folder = Path(stored.path)
    assert folder == home / "models" / "tiny-elliptical" / "1"
    (folder / "model.yaml").unlink()  # of bentoml
    assert open_artifact(folder).digest == artifact.digest


@pytest.mark.usefixtures("traced")
def test_an_export_with_store_says_where_it_is_stored(
    run_folder: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(run_folder), "--output", str(tmp_path / "out"), "--store"]
    assert main(command) == main(command) == 0
    assert "stored as tiny-elliptical:1" in capsys.readouterr().out
    stored = home / "models" / "tiny-elliptical" / "1" / "manifest.json"
    assert stored.read_bytes() == (tmp_path / "out" / "manifest.json").read_bytes()


@pytest.mark.usefixtures("traced")
def test_what_is_stored_never_changes_and_an_export_that_is_refused_leaves_the_older_artifact(
    run_folder: Path, artifact_folder: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_manifest(artifact_folder, metrics={"test_accuracy": 0.3})
    store_artifact(open_artifact(artifact_folder))
    before = (artifact_folder / "manifest.json").read_bytes()
    assert main([str(run_folder), "--output", str(artifact_folder), "--store"]) == 2
    said = capsys.readouterr().err
    assert "version must be new in the model store: tiny-elliptical:1 is stored with" in said
    stored = home / "models" / "tiny-elliptical" / "1" / "manifest.json"
    assert stored.read_bytes() == (artifact_folder / "manifest.json").read_bytes() == before


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("quantization", "version"), [("static", "1-int8"), ("dynamic", "1-int8-dynamic")]
)
def test_lower_precisions_have_versions_of_their_own(
    artifact_folder: Path, quantization: str, version: str
) -> None:
    edit_manifest(artifact_folder, precision="int8", quantization=quantization)
    assert store_artifact(open_artifact(artifact_folder)) == f"tiny-elliptical:{version}"


def test_an_interrupted_save_stores_nothing(
    artifact: Artifact, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.shutil, "copyfile", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store_artifact(artifact)
    assert not bentoml.models.list()


def test_of_two_that_store_at_once_the_slower_one_finds_the_other(
    artifact: Artifact, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = bentoml.models.create

    def late(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(bentoml.models, "create", create)
        store_artifact(artifact)
        return create(*arguments, **options)  # pyright: ignore[reportArgumentType]  passed on

    monkeypatch.setattr(bentoml.models, "create", late)
    assert store_artifact(artifact) == "tiny-elliptical:1"
    assert len(bentoml.models.list("tiny-elliptical")) == 1


def test_what_the_store_cannot_name_or_read_is_refused(artifact_folder: Path, home: Path) -> None:
    (home / "models" / "tiny-elliptical" / "1").mkdir(parents=True)
    with pytest.raises(ValueError, match="tiny-elliptical:1 lies in the model store, but cannot"):
        store_artifact(open_artifact(artifact_folder))
    edit_manifest(artifact_folder, version="latest")
    with pytest.raises(ValueError, match="version must not be latest"):
        store_artifact(open_artifact(artifact_folder))

from pathlib import Path

import pytest

from export.artifact import Artifact


# BentoML 1.4.39 imports a pathspec class that pathspec 1.x deprecates.
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_artifact_is_stored_once_with_its_digest(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path))
    import bentoml
    from bentoml._internal.configuration.containers import BentoMLContainer

    from export.store import store_artifact

    BentoMLContainer.bentoml_home.reset()
    tag = store_artifact(artifact)
    assert tag == f"tiny-elliptical:1-{artifact.digest[:12]}"
    assert store_artifact(artifact) == tag
    stored = bentoml.models.get(tag)
    assert stored.info.labels == {"task": "image-classification", "precision": "fp32"}
    assert stored.info.metadata["digest"] == artifact.digest
    assert len(bentoml.models.list("tiny-elliptical")) == 1
    files = [path for path in Path(stored.path).iterdir() if path.name != "model.yaml"]
    assert {path.name for path in files} >= {"manifest.json", "card.json", "model.onnx"}

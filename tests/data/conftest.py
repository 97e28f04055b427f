from collections.abc import Callable
from pathlib import Path

import pytest

Snapshot = Callable[[str], Path]


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    """Makes the folder of "datasets--team--set" in a cache of the hub, which is not asked."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))

    def make(name: str) -> Path:
        folder = tmp_path / name / "snapshots" / "abc"
        folder.mkdir(parents=True)
        (tmp_path / name / "refs").mkdir()
        (tmp_path / name / "refs" / "main").write_text("abc")
        return folder

    return make

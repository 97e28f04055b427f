import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.settings import ROOT, Settings, absolute_paths, get_settings, log_format


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ASSAY_")]:
        monkeypatch.delenv(name)


def test_shipped_files_are_found_from_any_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings()
    assert settings.models == [ROOT / "artifacts"]
    assert settings.samples == ROOT / "artifacts" / "samples"
    assert settings.state == tmp_path / "state"
    monkeypatch.setenv("ASSAY_MODELS", f"/a{os.pathsep}/b")
    assert Settings().models == [Path("/a"), Path("/b")]


@pytest.mark.parametrize(
    ("name", "value"),
    [("MAX_BODY_MB", "0"), ("ROLE", "both"), ("BATCH_MAX", "-1"), ("RUNTIME", "abacus")],
)
def test_impossible_value_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"ASSAY_{name}", value)
    with pytest.raises(ValidationError, match=name.lower()):
        Settings()


def test_relative_paths_are_taken_from_the_directory_of_the_start() -> None:
    given = {"ASSAY_MODELS": f"mine{os.pathsep}/b", "PATH": "x", "ASSAY_DATA": ""}
    assert absolute_paths(given, Path("/start")) == {
        "ASSAY_MODELS": f"/start/mine{os.pathsep}/b",
        "ASSAY_STATE": "/start/state",
    }


@pytest.mark.parametrize("name", ["API_KEYS", "DATABASE"])
def test_a_secret_is_read_from_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "secret"
    monkeypatch.setenv(f"ASSAY_{name}_FILE", str(path))
    with pytest.raises(ValueError, match=f"^ASSAY_{name}_FILE={path} cannot be read: No such file"):
        get_settings.__wrapped__()
    path.write_text(" \n")
    with pytest.raises(ValueError, match=f"^ASSAY_{name}_FILE={path} must not be empty$"):
        get_settings.__wrapped__()
    path.write_text("the secret\n")
    assert getattr(Settings(), name.lower()).get_secret_value() == "the secret"
    monkeypatch.setenv(f"ASSAY_{name}", "another")
    both = f"^ASSAY_{name} and ASSAY_{name}_FILE must not both be given$"
    with pytest.raises(ValueError, match=both):
        get_settings.__wrapped__()


def test_image_formats_are_listed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_IMAGE_FORMATS", " png ,jpeg2000")
    assert Settings().image_formats == ("PNG", "JPEG2000")
    monkeypatch.setenv("ASSAY_IMAGE_FORMATS", "png,heic")
    named = "^ASSAY_IMAGE_FORMATS: there is no format 'HEIC'; known are PNG, JPEG"
    with pytest.raises(ValueError, match=named):
        get_settings.__wrapped__()


def test_every_wrong_setting_is_named_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_WORKERS", "0")
    monkeypatch.setenv("ASSAY_LOG_FORMAT", "xml")
    with pytest.raises(
        ValueError, match="^ASSAY_WORKERS: Input .* 0; ASSAY_LOG_FORMAT: Input [^\n]*$"
    ):
        get_settings.__wrapped__()
    assert log_format() == "auto"
    monkeypatch.setenv("ASSAY_LOG_FORMAT", "json")
    assert log_format() == "json"

"""Models from elsewhere: what fails is said, and never left out in silence."""

from pathlib import Path

import pytest

from benchmarks import foreign_models
from benchmarks.foreign_models import Case, run


@pytest.mark.slow
def test_a_model_that_fails_is_a_missed_row_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos.parquet").touch()
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    monkeypatch.setattr(foreign_models, "packages", lambda name: tmp_path)
    [row] = foreign_models.attempt("broken", Case(file="broken.onnx"), tmp_path, 1)
    assert row.met is False
    assert "broken: -m export import: error: broken.onnx is no ONNX file" in row.case


def test_a_model_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean"):
        list(run(only=("resnet-50",)))

from importlib.metadata import PackageNotFoundError, version

import pytest

from core import environment


def test_versions_are_those_that_are_installed() -> None:
    expected = {name: version(name) for name in ("torch", "onnxruntime")}
    assert environment.versions(["torch", "onnxruntime"]) == expected


def test_build_for_cuda_counts_as_the_same_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_a_cuda_host(name: str) -> str:
        if name == "onnxruntime-gpu":
            return "1.31.1"
        raise PackageNotFoundError(name)

    monkeypatch.setattr(environment, "version", on_a_cuda_host)
    assert environment.versions(["onnxruntime"]) == {"onnxruntime": "1.31.1"}
    with pytest.raises(PackageNotFoundError, match="torch"):
        environment.versions(["torch"])

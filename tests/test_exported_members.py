import importlib

import pytest

PACKAGES = ["models", "data", "training", "export", "robustness", "service"]


@pytest.mark.parametrize("package", PACKAGES)
def test_package_exports_what_it_says(package: str) -> None:
    module = importlib.import_module(package)
    exported = getattr(module, "__all__", [])
    assert list(exported) == sorted(exported)
    assert all(hasattr(module, name) for name in exported)

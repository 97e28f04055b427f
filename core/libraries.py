"""Versions of the libraries that the bytes of an evaluation depend on."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

# The build of ONNX Runtime for CUDA is a package of another name.
_OTHER_BUILDS = {"onnxruntime": "onnxruntime-gpu"}


def versions(names: Iterable[str]) -> dict[str, str]:
    """The installed version of each library, whichever build of it is installed.

    Raises:
        PackageNotFoundError: one of them is not installed.
    """
    return {name: _version(name) for name in names}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        if name not in _OTHER_BUILDS:
            raise
        return version(_OTHER_BUILDS[name])

"""What figures and bytes depend on beside the inputs: the source, the libraries, the processor."""

import hashlib
import platform
from collections.abc import Iterable
from functools import lru_cache
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_CPUINFO = Path("/proc/cpuinfo")
_EVALUATING = ("core", "data", "export", "models", "robustness", "runtimes")
# The build of ONNX Runtime for CUDA is a package of another name.
_OTHER_BUILDS = {"onnxruntime": "onnxruntime-gpu"}
version = lru_cache(metadata.version)  # milliseconds, and every shard asks for five


def versions(names: Iterable[str]) -> dict[str, str]:
    """The installed version of each library, whichever build of it is installed.

    Raises:
        PackageNotFoundError: one of them is not installed.
    """
    return {name: _version(name) for name in names}


def installed(names: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed, under exactly these names."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def python_and_machine() -> dict[str, str]:
    """Python's version and the kind of processor, such as x86_64."""
    return {"python": platform.python_version(), "machine": platform.machine()}


def processor() -> str:
    """The processor's name."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


@lru_cache
def cpu_flags() -> frozenset[str]:
    """Instruction sets of the processor as Linux names them; empty where there is no such list."""
    for key in ("flags", "Features"):
        if text := _cpuinfo(key):
            return frozenset(text.split())
    return frozenset()


@lru_cache(maxsize=1)
def code_digest() -> str:
    """sha256 over the names and bytes of the source that reads, attacks and scores."""
    digest = hashlib.sha256()
    for folder in _EVALUATING:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(_ROOT).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        if name not in _OTHER_BUILDS:
            raise
        return version(_OTHER_BUILDS[name])


def _cpuinfo(key: str) -> str:
    for line in _CPUINFO.read_text().splitlines() if _CPUINFO.is_file() else ():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""

"""What the speed of a runtime depends on, besides the artifact."""

import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_NVIDIA = Path("/proc/driver/nvidia")
_PACKAGES = ("numpy", "onnxruntime", "onnxruntime-gpu", "openvino", "torch")


@lru_cache
def cpu_flags() -> frozenset[str]:
    """Instruction sets of the processor as Linux names them; empty where there is no such list."""
    for key in ("flags", "Features"):
        if text := _cpuinfo(key):
            return frozenset(text.split())
    return frozenset()


def has_nvidia_gpu() -> bool:
    """Whether the driver of NVIDIA sees a device."""
    return any((_NVIDIA / "gpus").glob("*"))


def fingerprint() -> dict[str, str]:
    """The processor, the devices and the versions of every engine.

    Two machines with the same answer run the same runtime the fastest.
    """
    cpu = _cpuinfo("model name") or platform.processor() or platform.machine()
    found = {"cpu": cpu, "flags": " ".join(sorted(cpu_flags())), "gpus": _gpus()}
    return found | {package: _version(package) for package in _PACKAGES}


def _cpuinfo(key: str) -> str:
    for line in _CPUINFO.read_text().splitlines() if _CPUINFO.is_file() else ():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def _gpus() -> str:
    found = [path.read_text() for path in sorted((_NVIDIA / "gpus").glob("*/information"))]
    models = [
        line.partition(":")[2].strip()
        for text in found
        for line in text.splitlines()
        if line.startswith("Model")
    ]
    driver = _NVIDIA / "version"
    return ", ".join([*models, *(driver.read_text().splitlines()[:1] if models else [])])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""

"""What the speed of a runtime depends on, besides the artifact."""

from pathlib import Path

from core.environment import cpu_flags, installed, processor

_NVIDIA, _DEVICES = Path("/proc/driver/nvidia"), Path("/dev")
_PACKAGES = ("numpy", "onnxruntime", "onnxruntime-gpu", "openvino", "torch")


def has_nvidia_gpu() -> bool:
    """Whether the driver of NVIDIA sees a device; some sandboxes show nothing but the device."""
    return any((_NVIDIA / "gpus").glob("*")) or any(_DEVICES.glob("nvidia[0-9]*"))


def fingerprint() -> dict[str, str]:
    """The processor, the devices and the versions of every runtime.

    Two machines with the same answer run the same runtime the fastest.
    """
    found = {"cpu": processor(), "flags": " ".join(sorted(cpu_flags())), "gpus": gpus()}
    return found | dict.fromkeys(_PACKAGES, "") | installed(_PACKAGES)


def gpus() -> str:
    """Names of the GPUs and the version of their driver, as far as it tells them."""
    found = [path.read_text() for path in sorted((_NVIDIA / "gpus").glob("*/information"))]
    models = [
        line.partition(":")[2].strip()
        for text in found
        for line in text.splitlines()
        if line.startswith("Model")
    ]
    driver = _NVIDIA / "version"
    return ", ".join([*models, *(driver.read_text().splitlines()[:1] if models else [])])

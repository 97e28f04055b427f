"""Where an evaluation ran: what its bytes may depend on, and nothing that tells who ran it."""

import platform
from importlib.metadata import version

import torch

_LIBRARIES = ("numpy", "onnxruntime", "pillow", "scipy", "torch", "torchattacks")


def environment(threads: int) -> dict[str, str]:
    """Versions, kind of processor and number of threads.

    Args:
        threads: threads of torch and of the runtime.
    """
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in _LIBRARIES},
        "machine": platform.machine(),
        "cpu_kernels": torch.backends.cpu.get_cpu_capability(),
        "threads": str(threads),
    }

"""Where an evaluation ran: what its bytes may depend on, and nothing that tells who ran it."""

from collections.abc import Collection

import torch

from core.environment import python_and_machine, versions

_LIBRARIES = ("numpy", "onnxruntime", "pillow", "scipy", "torch", "torchattacks")


def environment(threads: int, runtimes: Collection[str]) -> dict[str, str]:
    """Versions, kind of processor and number of threads.

    Args:
        threads: threads of torch and of the runtime.
        runtimes: names of those that judged.
    """
    engines = {"openvino"}.intersection(runtimes)
    return {
        **python_and_machine(),
        **versions((*_LIBRARIES, *engines)),
        "cpu_kernels": torch.backends.cpu.get_cpu_capability(),
        "threads": str(threads),
    }

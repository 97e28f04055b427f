"""Where an evaluation ran: what its bytes may depend on, and nothing that tells who ran it."""

import hashlib
import platform
from collections.abc import Collection
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import torch

_ROOT = Path(__file__).parents[2]
_CODE = ("data", "export", "models", "robustness")  # what a verdict passes through
_LIBRARIES = ("numpy", "onnxruntime", "pillow", "scipy", "torch", "torchattacks")


def environment(threads: int, runtimes: Collection[str]) -> dict[str, str]:
    """Versions, kind of processor and number of threads.

    Args:
        threads: threads of torch and of the runtime.
        runtimes: names of those that judged.
    """
    engines = {"openvino"}.intersection(runtimes)
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in (*_LIBRARIES, *engines)},
        "machine": platform.machine(),
        "cpu_kernels": torch.backends.cpu.get_cpu_capability(),
        "threads": str(threads),
    }


@lru_cache(maxsize=1)
def code_digest() -> str:
    """sha256 over the names and bytes of the source that reads, attacks and judges."""
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(_ROOT).as_posix()} {content}\n".encode())
    return digest.hexdigest()

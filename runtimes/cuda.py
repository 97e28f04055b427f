"""What CUDA needs, in words: what of it is here, and what to install where it is missing."""

import contextlib
import importlib
import importlib.util
import io
import re
from collections.abc import Callable
from ctypes.util import find_library
from functools import cache

import onnxruntime

from core.environment import installed
from runtimes.base import RuntimeUnavailable
from runtimes.machine import gpus, has_nvidia_gpu

CUDA_PROVIDER, TENSORRT_PROVIDER = "CUDAExecutionProvider", "TensorrtExecutionProvider"
_COLOR = re.compile(r"\x1b\[\d*m")
_INSTALL = "install requirements/gpu.txt (make install FLAVOUR=cuda)"


@cache
def load_libraries() -> str:
    """Load CUDA and cuDNN for ONNX Runtime, from the packages that torch brings or the linker's.

    Returns:
        What it says of libraries that it does not find; empty when it has all of them.
    """
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        onnxruntime.preload_dlls()
    return "; ".join(_COLOR.sub("", said.getvalue()).splitlines())


def driver() -> str:
    """The GPUs and the driver.

    Raises:
        RuntimeUnavailable: there are none, as of the other checks.
    """
    if not has_nvidia_gpu():
        raise RuntimeUnavailable(
            "the driver of NVIDIA sees no GPU; install it, or give the container its GPUs"
        )
    return gpus() or "a GPU"


def provider(name: str = CUDA_PROVIDER) -> str:
    """The build of ONNX Runtime, which has a provider of this name."""
    if name in onnxruntime.get_available_providers():
        return _build()
    raise RuntimeUnavailable(f"{_build()} has no {name}; {_INSTALL}")


def _build() -> str:
    found = installed(["onnxruntime", "onnxruntime-gpu"])
    return ", ".join(" ".join(each) for each in found.items())


def libraries() -> str:
    """Whether ONNX Runtime finds CUDA and cuDNN."""
    provider()
    if said := load_libraries():
        raise RuntimeUnavailable(f"{said}; install requirements/torch-cuda.txt, which brings them")
    return "found beside torch, or by the linker"


def tensorrt() -> str:
    """Whether ONNX Runtime can find TensorRT."""
    provider(TENSORRT_PROVIDER)
    try:
        found = _has_tensorrt()
    except (ImportError, OSError) as error:
        raise RuntimeUnavailable(f"TensorRT cannot be loaded: {error}; install it again") from error
    if not found:
        raise RuntimeUnavailable("TensorRT is not here; install tensorrt with pip or the system")
    return "installed"


@cache
def _has_tensorrt() -> bool:
    if importlib.util.find_spec("tensorrt") is None:
        return find_library("nvinfer") is not None
    importlib.import_module("tensorrt")  # loads the libraries, where ONNX Runtime finds them
    return True


def torch_build() -> str:
    """The build of torch, which uses the GPUs."""
    import torch

    if torch.version.cuda is None:
        raise RuntimeUnavailable(
            f"torch {torch.__version__} knows no CUDA; install torch from an index of CUDA builds"
        )
    if not torch.cuda.is_available():
        needed = f"torch {torch.__version__} finds no device for CUDA {torch.version.cuda}"
        raise RuntimeUnavailable(f"{needed}; install a newer driver")
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}"


CHECKS: dict[str, Callable[[], str]] = {
    "driver": driver,
    "torch": torch_build,
    "ONNX Runtime": provider,
    "CUDA, cuDNN": libraries,
    "TensorRT": tensorrt,
}
"""What each part is, or why it is missing, as RuntimeUnavailable."""

"""TorchScript on the CPU, or on CUDA where there is one.

torch is imported when this runtime is opened: it costs seconds and hundreds of megabytes, which a
process that predicts with another runtime does not pay.
"""

import importlib.util
import io
import os
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from core.environment import cpu_flags
from runtimes.artifact import Artifact, ArtifactError
from runtimes.base import Inputs, Mode, as_feed
from runtimes.machine import has_nvidia_gpu
from runtimes.manifest import TORCHSCRIPT as FILE
from runtimes.manifest import Manifest

if TYPE_CHECKING:
    from torch import nn

TORCHSCRIPT = "torchscript"
_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


class TorchScript:
    """A frozen trace of the model.

    Args:
        artifact: a verified artifact.
        precision: "fp32", or "bf16" for its matrix products in bfloat16.
        threads: threads of torch in this whole process, which knows no other number.

    Raises:
        ArtifactError: the file changed since it was verified, or torch cannot read it.
    """

    def __init__(self, artifact: Artifact, *, precision: str, threads: int) -> None:
        # Read when torch is imported for the first time: threads that spin while they wait take
        # the cores from whatever else runs here.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        import torch

        torch.set_num_threads(threads)
        torch.backends.cudnn.allow_tf32 = precision != "fp32"
        content = artifact.read(FILE)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self.name = TORCHSCRIPT if self._device == "cpu" else f"{TORCHSCRIPT}-cuda"
        self.precision = precision
        self._manifest = artifact.manifest
        try:
            self._module = load_torchscript(content, device=self._device)
        except RuntimeError as error:
            raise ArtifactError(f"{FILE} cannot be opened by torch") from error

    def predict(self, inputs: Inputs) -> np.ndarray:
        """See `Runtime.predict`."""
        import torch

        feed = as_feed(inputs, self._manifest)
        half = torch.autocast(self._device, torch.bfloat16, enabled=self.precision == "bf16")
        with torch.inference_mode(), half:
            logits: Any = self._module(
                *(torch.tensor(a, device=self._device) for a in feed.values())
            )
        return logits.float().cpu().numpy()


def load_torchscript(content: bytes, *, device: str = "cpu") -> "nn.Module":
    """Open the bytes of a TorchScript file; they are code, so check their digest before.

    Args:
        content: what `Artifact.read("model.torchscript.pt")` returned.
        device: where its constants go, the weights of a frozen trace among them; `to` leaves them.
    """
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = torch.jit.load(io.BytesIO(content), map_location=device)
    place(module, device)
    return module


def place(module: Any, device: str) -> None:
    """Make tensors that a frozen trace creates on a device; it names the one it was traced on."""
    for node in module.graph.findAllNodes("prim::Constant"):
        if node.output().type().kind() == "DeviceObjType":
            node.s_("value", device)


def missing() -> str | None:
    """Why TorchScript cannot be used, or None."""
    if importlib.util.find_spec("torch") is None:
        return "the package torch is not installed; install torch, as `make install` does"
    return None


def precisions(manifest: Manifest, mode: Mode) -> list[str]:
    """Precisions in which the trace, always written in fp32, can be run here."""
    if FILE not in manifest.files:
        return []
    if mode == "exact":
        return ["fp32"] if manifest.precision == "fp32" else []
    fast = has_nvidia_gpu() or _BF16_FLAGS & cpu_flags()
    return ["fp32", "bf16"] if fast else ["fp32"]

"""Open an artifact's graph on an engine; nothing here imports torch."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import onnxruntime

from export.artifact import Artifact, ArtifactError
from export.manifest import ONNX, WEIGHTS, Manifest, config_digest
from export.threads import available_cores

METADATA_WEIGHTS, METADATA_CONFIG = "weights_sha256", "config_sha256"


class Runtime(Protocol):
    """An opened graph. `predict` may be called from any thread."""

    @property
    def name(self) -> str:
        """Which engine on which device, e.g. "onnx-cpu"."""
        ...

    @property
    def precision(self) -> str:
        """Arithmetic of the graph, e.g. "fp32"."""
        ...

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        """Compute the logits of some inputs.

        Args:
            inputs: (B, C, H, W) float32, pixels in [0, 1], B >= 1.

        Returns:
            (B, K) float32 logits, an array of the caller's own.

        Raises:
            ValueError: wrong shape or type.
        """
        ...


class OnnxCpu:
    """ONNX Runtime on the CPU.

    Args:
        artifact: a verified artifact.
        threads: size of the pool that one prediction uses.

    Raises:
        ArtifactError: the graph changed since it was verified, cannot be opened, or belongs to
            other weights or another config than the manifest's.
    """

    name = "onnx-cpu"
    precision = "fp32"

    def __init__(self, artifact: Artifact, *, threads: int) -> None:
        self._input = tuple(artifact.manifest.input.shape[1:])
        self._session = open_session(artifact.read(ONNX), threads=threads)
        _check_origin(self._session, artifact.manifest)

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        """See `Runtime.predict`."""
        if inputs.dtype != np.float32:
            raise ValueError(f"inputs must be float32, got {inputs.dtype}")
        if inputs.ndim != 4 or inputs.shape[1:] != self._input or not len(inputs):
            raise ValueError(f"inputs must be (B >= 1, {self._input}), got {inputs.shape}")
        logits = self._session.run(["logits"], {"images": np.ascontiguousarray(inputs)})[0]
        return np.array(logits, dtype=np.float32, order="C")


_OPENERS: dict[str, Callable[..., Runtime]] = {"onnx-cpu": OnnxCpu}


def open_runtime(
    artifact: Artifact, *, name: str = "onnx-cpu", threads: int | None = None
) -> Runtime:
    """Open an artifact on an engine.

    Args:
        artifact: a verified artifact.
        name: which engine.
        threads: threads of one prediction; None takes the cores that this process may use.

    Raises:
        ValueError: unknown engine, or fewer than one thread.
        ArtifactError: see the engine.
    """
    if name not in _OPENERS:
        raise ValueError(f"name must be one of {', '.join(_OPENERS)}, got {name!r}")
    threads = available_cores() if threads is None else threads
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    return _OPENERS[name](artifact, threads=threads)


def open_session(content: bytes, *, threads: int) -> onnxruntime.InferenceSession:
    """Open the bytes of a graph on the CPU.

    Threads do not spin while they wait: evaluation and serving share the cores. On a busy machine
    of two cores spinning cost 2 to 5 times the processor time of a call, and was faster for a
    single image only.

    Raises:
        ArtifactError: the graph cannot be opened.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no public base class
        raise ArtifactError(f"{ONNX} cannot be opened: {type(error).__name__}") from error


def _check_origin(session: onnxruntime.InferenceSession, manifest: Manifest) -> None:
    said = session.get_modelmeta().custom_metadata_map
    expected = {
        METADATA_WEIGHTS: manifest.files[WEIGHTS],
        METADATA_CONFIG: config_digest(manifest.config),
    }
    for key, value in expected.items():
        if said.get(key) != value:
            raise ArtifactError(f"{ONNX} was exported from another model: its {key} differs")

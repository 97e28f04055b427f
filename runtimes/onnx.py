"""ONNX Runtime on the CPU, on CUDA and with TensorRT."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from runtimes import cuda
from runtimes.artifact import Artifact, ArtifactError
from runtimes.base import Inputs, Mode, RuntimeUnavailable, as_feed, in_batches
from runtimes.manifest import ONNX, WEIGHTS, Manifest, config_digest
from runtimes.quantized import built_folder, is_derived, read_graph

METADATA_WEIGHTS, METADATA_CONFIG = "weights_sha256", "config_sha256"
CPU, CUDA, TENSORRT = "onnx-cpu", "onnx-cuda", "onnx-tensorrt"
_PROVIDERS = {
    CPU: "CPUExecutionProvider",
    CUDA: cuda.CUDA_PROVIDER,
    TENSORRT: cuda.TENSORRT_PROVIDER,
}
_NEEDED = {
    CPU: (),
    CUDA: (cuda.provider, cuda.driver),
    TENSORRT: (partial(cuda.provider, cuda.TENSORRT_PROVIDER), cuda.driver, cuda.tensorrt),
}
_FASTER = {CPU: ["int8"], CUDA: ["tf32"], TENSORRT: ["bf16", "fp16"]}
_LARGEST_BATCH = 64


class OnnxRuntime:
    """A session of ONNX Runtime.

    Args:
        artifact: a verified artifact.
        name: "onnx-cpu", "onnx-cuda" or "onnx-tensorrt".
        precision: the graph's own, "int8", or "tf32" on CUDA, or "fp16" and "bf16" with TensorRT.
        threads: size of the pool that one prediction uses.
        cache: where int8 forms are, and where TensorRT stores the plans that it built; None builds
            them at every start.

    Raises:
        ArtifactError: the graph changed since it was verified, cannot be opened, or belongs to
            other weights or another config than the manifest's.
        RuntimeUnavailable: the session does not run on the device that was asked for.
    """

    def __init__(
        self, artifact: Artifact, *, name: str, precision: str, threads: int, cache: Path | None
    ) -> None:
        self.name = name
        self.precision = precision
        self._manifest = artifact.manifest
        providers = _providers(name, precision, artifact, cache)
        self._session = _open(artifact, precision, threads, cache, providers)
        # A provider that fails later would otherwise be replaced by the CPU without a word.
        self._session.disable_fallback()
        used = self._session.get_providers()[0]
        if used != _PROVIDERS[name]:
            problem = f"the session runs on {used} instead"
            raise RuntimeUnavailable(f"runtime {name} is not available: {problem}")
        if artifact.manifest.source is None:
            _check_origin(self._session, artifact.manifest)

    def predict(self, inputs: Inputs) -> np.ndarray:
        """See `Runtime.predict`."""
        feed = as_feed(inputs, self._manifest)
        return in_batches(self._run, feed, self._manifest.batch)

    def _run(self, feed: dict[str, np.ndarray]) -> np.ndarray:
        return np.array(self._session.run(["logits"], feed)[0], dtype=np.float32, order="C")


def missing(name: str) -> str | None:
    """Why a runtime of this module cannot be used, or None."""
    try:
        for check in _NEEDED[name]:
            check()
    except RuntimeUnavailable as error:
        return str(error)
    return None


def precisions(name: str, manifest: Manifest, mode: Mode) -> list[str]:
    """Precisions in which a runtime of this module can run a graph, the graph's own first."""
    own = manifest.precision
    if name == CPU and own == "bf16":  # its kernels know no bf16: no session could be made
        return []
    if mode == "exact" or own != "fp32" or manifest.source is not None:
        return [own]
    return [own, *_FASTER[name]]


def _open(
    artifact: Artifact, precision: str, threads: int, cache: Path | None, providers: list[Any]
) -> onnxruntime.InferenceSession:
    if is_derived(artifact, precision) or artifact.manifest.source is not None:
        content = read_graph(artifact, precision, cache)
        return open_session(content, threads=threads, providers=providers)
    # By its path: bytes would be held twice. Verified again, in case it changed meanwhile.
    artifact.verify(ONNX)
    session = open_session(artifact.file(ONNX), threads=threads, providers=providers)
    artifact.verify(ONNX)
    return session


def open_session(
    graph: bytes | Path, *, threads: int, providers: list[Any] | None = None
) -> onnxruntime.InferenceSession:
    """Open a graph, its bytes or its file, on the CPU unless told otherwise.

    Threads spin between the operators of a call and sleep after it: evaluation and serving share
    the cores. On two cores a single image took 19 ms so and with endless spinning, which cost
    nearly twice the processor time, and 28 ms without any.

    Raises:
        ArtifactError: the graph cannot be opened.
        RuntimeUnavailable: the providers that were asked for cannot open it.
    """
    if providers and len(providers) > 1:
        cuda.load_libraries()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(
            graph, options, providers=providers or [_PROVIDERS[CPU]], enable_fallback=0
        )
    except Exception as error:  # its exceptions share no public base class
        if providers and len(providers) > 1:
            raise RuntimeUnavailable(f"the session cannot be opened: {error}") from error
        raise ArtifactError(f"{ONNX} cannot be opened: {type(error).__name__}") from error


def _providers(name: str, precision: str, artifact: Artifact, cache: Path | None) -> list[Any]:
    if name == CPU:
        return [_PROVIDERS[CPU]]
    # Rounded to TensorFloat-32 by default, which an exact fp32 is not.
    plain = (_PROVIDERS[CUDA], {"use_tf32": str(int(precision == "tf32"))})
    if name == CUDA:
        return [plain, _PROVIDERS[CPU]]
    tensorrt = _tensorrt_options(precision, artifact, cache)
    return [(_PROVIDERS[TENSORRT], tensorrt), plain, _PROVIDERS[CPU]]


def _tensorrt_options(precision: str, artifact: Artifact, cache: Path | None) -> dict[str, str]:
    """Options that build one plan for every batch, instead of one for each new size."""
    own = artifact.manifest.precision
    options = {
        "trt_fp16_enable": str("fp16" in (precision, own)),
        "trt_bf16_enable": str("bf16" in (precision, own)),
        "trt_int8_enable": str(own == "int8"),
    }
    for kind, batch in (("min", 1), ("opt", 8), ("max", _LARGEST_BATCH)):
        options[f"trt_profile_{kind}_shapes"] = _profile(artifact.manifest, kind, batch)
    if cache is not None:
        # A folder for each artifact and precision: names of plans need not tell them apart.
        folder = built_folder(artifact, cache) / "tensorrt" / precision
        folder.mkdir(parents=True, exist_ok=True)
        options |= {"trt_engine_cache_enable": "True", "trt_engine_cache_path": str(folder)}
    return options


def _profile(manifest: Manifest, kind: str, batch: int) -> str:
    if manifest.input.name == "images":
        return "images:" + "x".join(map(str, (batch, *manifest.input.shape[1:])))
    longest = manifest.seq_len
    length = {"min": 1, "opt": longest // 2 or 1, "max": longest}[kind]
    return ",".join(f"{name}:{batch}x{length}" for name in ("tokens", "mask"))


def _check_origin(session: onnxruntime.InferenceSession, manifest: Manifest) -> None:
    said = session.get_modelmeta().custom_metadata_map
    weights, config = manifest.files[WEIGHTS], config_digest(manifest.config)
    for key, value in ((METADATA_WEIGHTS, weights), (METADATA_CONFIG, config)):
        if said.get(key) != value:
            raise ArtifactError(f"{ONNX} was exported from another model: its {key} differs")

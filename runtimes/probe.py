"""The probe: a few inputs with the logits that the eager model gave, stored in the artifact.

Whoever opens the graph, on any runtime and processor, can check that it is still the same model.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from runtimes.artifact import Artifact, ArtifactError
from runtimes.manifest import PROBE

PROBE_SAMPLES = 200
"""Enough to tell 99.5 % of equal answers from fewer: one answer of 200 may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Stored inputs and their logits.

    Attributes:
        inputs: by name: `images` (N, C, H, W), uint8 or float32 in [0, 1]; or `tokens` (N, L) of an
            integer type and `mask` (N, L) bool.
        logits: (N, K) float32 of the eager model in fp32, of other tasks of their shape.
    """

    inputs: dict[str, np.ndarray]
    logits: np.ndarray

    def __len__(self) -> int:
        """Number of inputs."""
        return len(self.logits)

    def batches(self, size: int) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        """What the graph reads, by name, and its logits, for `size` inputs at a time.

        Images are float32 in [0, 1] and token ids int64, however they are stored.
        """
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            feed = {name: _as_read(values[part]) for name, values in self.inputs.items()}
            yield feed, self.logits[part]


def write_probe(probe: Probe) -> bytes:
    """The bytes of a probe's file; the same probe gives the same bytes."""
    arrays = probe.inputs | {"logits": probe.logits}
    for name, values in probe.inputs.items():
        if values.dtype == np.int64:  # token ids in as few bytes as hold them
            arrays[name] = values.astype(np.uint16 if values.max() < 1 << 16 else np.int32)
    return save({name: np.ascontiguousarray(values) for name, values in arrays.items()})


def read_probe(artifact: Artifact, count: int | None = None) -> Probe:
    """Read an artifact's probe, whose file is verified again.

    Args:
        artifact: where it is stored.
        count: how many inputs to read at most, the first ones; None reads them all.

    Raises:
        ArtifactError: the file changed, or does not hold inputs of this model and their logits.
    """
    artifact.verify(PROBE)
    names = ["images"] if artifact.manifest.input.name == "images" else ["tokens", "mask"]
    try:
        with safe_open(artifact.file(PROBE), "np") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
            _check_shapes(shapes, names, artifact.manifest.output.shape[1:])
            read = slice(None if count is None else min(count, shapes["logits"][0]))
            tensors = {name: file.get_slice(name)[read] for name in shapes}
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"{PROBE} holds no inputs with logits") from error
    logits = tensors.pop("logits")
    # NaN is neither more nor less than a tolerance.
    if logits.dtype != np.float32 or not np.isfinite(logits).all():
        raise ArtifactError(f"{PROBE} must have finite float32 logits")
    return Probe(inputs={name: tensors[name] for name in names}, logits=logits)


def _check_shapes(shapes: dict[str, list[int]], names: list[str], logits: list[int]) -> None:
    if "logits" not in shapes:
        raise ArtifactError(f"{PROBE} holds no inputs with logits")
    counts = {tuple(shape[:1]) for shape in shapes.values()}
    # No inputs are answered correctly by any runtime.
    if sorted(shapes) != sorted([*names, "logits"]) or len(counts) != 1 or counts & {(), (0,)}:
        raise ArtifactError(f"{PROBE} must hold {', '.join(names)} and as many logits, at least 1")
    # What is free in the graph, as the number of tokens, is that of the inputs.
    lengths = [shapes[names[0]][1] if size == -1 else size for size in logits]
    if shapes["logits"][1:] != lengths:
        wanted = " x ".join(map(str, logits))
        raise ArtifactError(f"{PROBE} must have {wanted} logits an input")


def _as_read(values: np.ndarray) -> np.ndarray:
    if values.dtype == np.uint8:
        return values.astype(np.float32) / np.float32(255)
    if values.dtype in (np.uint16, np.int32):  # how token ids are stored
        return values.astype(np.int64)
    return np.ascontiguousarray(values)

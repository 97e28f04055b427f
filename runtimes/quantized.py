"""The int8 form of an fp32 artifact, made on the machine that serves it.

Calibrated on half of the stored inputs, so that the parity gate also asks for inputs that the
calibration has not seen. Kept beside the choices of runtimes; the name of the file tells the sha256
of what it must hold.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from core.files import write_whole
from runtimes.artifact import Artifact
from runtimes.base import RuntimeUnavailable
from runtimes.manifest import ONNX
from runtimes.probe import Probe, read_probe

if TYPE_CHECKING:
    from export.samples import Samples

_FOLDER = "int8-2"
"""Counted up when `export.precision.int8` makes other graphs."""


def read_graph(artifact: Artifact, precision: str, cache: Path | None) -> bytes:
    """The graph to run in a precision: the artifact's own, or its int8 form.

    Raises:
        ArtifactError: the artifact's graph changed since it was verified.
        RuntimeUnavailable: the int8 form has not been made here.
    """
    if not is_derived(artifact, precision):
        return artifact.read(ONNX)
    content = _kept(artifact, cache)
    if content is None:
        raise RuntimeUnavailable("there is no int8 form of the graph: it is made by a choice")
    return content


def is_there(artifact: Artifact, precision: str, cache: Path | None) -> bool:
    """Whether the graph to run in a precision can be read."""
    return not is_derived(artifact, precision) or _kept(artifact, cache) is not None


def is_derived(artifact: Artifact, precision: str) -> bool:
    """Whether a precision needs another graph than the artifact's."""
    return precision.startswith("int8") and artifact.manifest.precision != "int8"


def make_int8(artifact: Artifact, cache: Path) -> None:
    """Make the int8 form of an fp32 artifact, unless it is there.

    This imports torch, as every export does.

    Raises:
        ValueError: the graph has nothing to quantise, or the stored inputs are not 8-bit images.
        OSError: the folder cannot be written.
    """
    if is_there(artifact, "int8", cache):
        return
    from export.precision.int8 import quantize_static

    content = quantize_static(artifact.read(ONNX), _calibration(read_probe(artifact)))
    _keep(content, artifact, cache)


def _calibration(probe: Probe) -> "Samples":
    """Every other stored input."""
    from data.token_set import Ragged
    from export.samples import Samples

    half = {name: values[::2] for name, values in probe.inputs.items()}
    if "images" in half:
        if half["images"].dtype != np.uint8:
            raise ValueError("the stored images must be 8-bit to calibrate int8")
        return Samples(pixels=half["images"], labels=None, description="stored inputs")
    rows = [tokens[mask] for tokens, mask in zip(half["tokens"], half["mask"], strict=True)]
    return Samples(tokens=Ragged.of(rows, np.uint32), labels=None, description="stored inputs")


def _keep(content: bytes, artifact: Artifact, cache: Path) -> None:
    name = f"{artifact.digest[:16]}-{hashlib.sha256(content).hexdigest()}.onnx"
    write_whole(cache / _FOLDER / name, content)


def _kept(artifact: Artifact, cache: Path | None) -> bytes | None:
    """The int8 form, from the first file that holds what its name says."""
    files = (cache / _FOLDER).glob(f"{artifact.digest[:16]}-*.onnx") if cache else ()
    for path in sorted(files):
        try:
            content = path.read_bytes()
        except OSError:  # deleted at this moment, unreadable, or no file
            continue
        if hashlib.sha256(content).hexdigest() == path.stem.partition("-")[2]:
            return content
    return None

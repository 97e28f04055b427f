"""The int8 form of an fp32 artifact, as runtime selection (`export.select`) leaves it in a cache.

The name of its file tells the sha256 of what it must hold.
"""

from pathlib import Path

from core.files import sha256
from runtimes.artifact import Artifact
from runtimes.base import RuntimeUnavailable

_INT8 = "int8-2"
"""Counted up when `export.int8` makes other graphs."""


def read_graph(artifact: Artifact, precision: str, cache: Path | None) -> bytes:
    """The graph to run in a precision: the artifact's own, or its int8 form.

    Raises:
        ArtifactError: the artifact's graph changed since it was verified.
        RuntimeUnavailable: the int8 form has not been made here.
    """
    if not is_derived(artifact, precision):
        return artifact.graph()
    content = _cached(artifact, cache)
    if content is None:
        raise RuntimeUnavailable(
            "no cached int8 graph; runtime selection creates it (ASSAY_PRECISION=fast)"
        )
    return content


def has_graph(artifact: Artifact, precision: str, cache: Path | None) -> bool:
    """Whether the graph to run in a precision can be read."""
    return not is_derived(artifact, precision) or _cached(artifact, cache) is not None


def is_derived(artifact: Artifact, precision: str) -> bool:
    """Whether a precision needs another graph than the artifact's."""
    return precision.startswith("int8") and artifact.manifest.precision != "int8"


def built_folder(artifact: Artifact, cache: Path) -> Path:
    """Where everything lies that was built of an artifact, and of no other."""
    return cache / "built" / artifact.digest[:16]


def int8_path(artifact: Artifact, content: bytes, cache: Path) -> Path:
    """Where an artifact's int8 form lies, named by its content."""
    return built_folder(artifact, cache) / f"{_INT8}-{sha256(content)}.onnx"


def _cached(artifact: Artifact, cache: Path | None) -> bytes | None:
    """The int8 form, from the first file that holds what its name says."""
    files = built_folder(artifact, cache).glob(f"{_INT8}-*.onnx") if cache else ()
    for path in sorted(files):
        try:
            content = path.read_bytes()
        except OSError:  # deleted at this moment, unreadable, or no file
            continue
        if sha256(content) == path.stem.removeprefix(f"{_INT8}-"):
            return content
    return None

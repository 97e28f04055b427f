"""The kinds of sources that can be imported, in the order in which they are tried."""

from pathlib import Path

from export.importers.base import Source
from export.importers.huggingface import HuggingFaceFolder
from export.importers.pytorch import Program, PythonFunction
from export.importers.source import SourceGraph

SOURCES: dict[str, type[Source]] = {
    kind.format: kind for kind in (HuggingFaceFolder, Program, SourceGraph, PythonFunction)
}

_WEIGHTS = {".bin", ".ckpt", ".pt", ".pth", ".safetensors"}


def open_source(given: str) -> Source:
    """Read what a source tells; nothing of it is run.

    Raises:
        ValueError: it is of no kind that is known, cannot be read, or is no classifier of images.
    """
    path = Path(given)
    if path.suffix in _WEIGHTS:
        raise ValueError(
            f"{path.name} holds weights without a model: give module:function, which builds it "
            "and loads them"
        )
    for kind in SOURCES.values():
        if kind.takes(given):
            return kind.open(given)
    kinds = [kind.wanted for kind in SOURCES.values()]
    raise ValueError(f"SOURCE must be {' or '.join(kinds)}, got {given[:60]!r}")

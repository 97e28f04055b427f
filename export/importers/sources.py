"""The kinds of sources that can be imported, in the order in which they are tried."""

from export.importers.base import Source
from export.importers.source import SourceGraph

SOURCES: dict[str, type[Source]] = {kind.format: kind for kind in (SourceGraph,)}


def open_source(given: str) -> Source:
    """Read what a source tells; nothing of it is run.

    Raises:
        ValueError: it is of no kind that is known, cannot be read, or is no classifier of images.
    """
    for kind in SOURCES.values():
        if kind.takes(given):
            return kind.open(given)
    kinds = [kind.wanted for kind in SOURCES.values()]
    raise ValueError(f"SOURCE must be {' or '.join(kinds)}, got {given[:60]!r}")

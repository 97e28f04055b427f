"""Show what a source tells of itself before it is imported, and what it does not."""

from collections import Counter

from core.names import listed
from core.tables import table
from export.importers.source import SourceGraph
from export.importers.sources import open_source

_LABELS = 8


def inspect_source(given: str) -> str:
    """What a source tells, the operators of a graph, and what the input file must say, as text.

    Raises:
        ValueError: see `open_source`, or ONNX Runtime cannot open it.
    """
    source = open_source(given)
    told = source.told.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    facts = [
        *source.facts(),
        ("names of classes", listed(source.labels, _LABELS) or "not told"),
        ("input file", ", ".join(f"{key} {value}" for key, value in told.items()) or "not told"),
    ]
    parts = [table(("", ""), facts, left=2)]
    if isinstance(source, SourceGraph):
        source.open_graph()
        nodes = Counter(node.op_type for node in source.nodes()).most_common()
        parts.append(table(("operator", "nodes"), nodes))
    missing = source.missing(source.told)
    needed = f"{source.name} does not tell {', '.join(missing)}" if missing else ""
    names = "" if source.labels else "names of classes come with --labels"
    parts.append("; ".join(filter(None, (needed, names))) or f"{source.name} tells all")
    return "\n\n".join(parts)

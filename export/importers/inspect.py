"""Show what an ONNX file tells of itself before it is imported, and what it does not."""

from collections import Counter
from pathlib import Path

from core.tables import table
from export.importers.input_file import InputFile
from export.importers.source import SourceGraph, described, open_source


def inspect_source(path: Path) -> str:
    """What a graph tells, its operators, and what the input file must say, as text.

    Raises:
        ValueError: see `open_source`, or ONNX Runtime cannot open it.
    """
    source = open_source(path)
    source.open()
    nodes = Counter(node.op_type for node in source.nodes()).most_common()
    parts = [
        table(("", ""), _facts(source), left=2),
        table(("operator", "nodes"), nodes),
        _needed(source),
    ]
    return "\n\n".join(parts)


def _facts(source: SourceGraph) -> list[tuple[str, str]]:
    producer = f"{source.model.producer_name} {source.model.producer_version}".strip()
    rounding = f" ({source.quantization})" if source.quantization else ""
    return [
        ("file", source.name),
        ("sha256", source.sha256),
        ("producer", producer or "not told"),
        ("opset", str(source.opset)),
        ("input", described(source.reads)),
        ("layout", source.layout or "not told"),
        ("batch", "any" if source.batch is None else f"{source.batch} at a time"),
        ("output", described(source.gives)),
        ("classes", str(source.classes or "not told")),
        ("last operator", source.model.graph.node[-1].op_type),
        ("precision", f"{source.precision}{rounding}"),
    ]


def _needed(source: SourceGraph) -> str:
    missing = source.missing(InputFile())
    told = (
        f"the graph does not tell {', '.join(missing)}" if missing else "the graph tells its input"
    )
    return f"{told}; names of classes come with --labels"

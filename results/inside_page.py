"""The part of `docs/results.md` on what models do inside: a picture and a table for each task."""

from collections.abc import Iterator, Sequence
from typing import Any

from core.tables import markdown_table
from results import isomap
from results.analysis import BINS, BY_LAYER
from results.layer_chart import Line, Panel, draw

ABOUT = """
"Inside" shows trained weights on test samples (`./assay results analyze`): lines are means over
samples, shaded from the 5 % to the 95 % quantile; dashed are the bounds that TransJect guarantees.
Entropy is our reading of TransJect's equation 10, so the paper's figures for it cannot stand beside
these. Dots are tokens as the last layer gives them, by Isomap, in the color of their sample's
label.
"""
_COLUMNS = (
    "model", "samples", "factor, whole model", "bounds", "entropy, last layer",
    "cosine similarity, last layer", "distance between heads, mean", "factor and entropy, r",
)  # fmt: skip


def section(source: str, records: Sequence[dict[str, Any]]) -> list[str]:
    """The lines on the analyses, at least one, of a data set."""
    tokens = isomap.picture_name(source)
    return [
        "### Inside",
        "",
        f"![What the models do inside](images/{picture_name(source)})",
        "",
        *([f"![Tokens of the last layer](images/{tokens})", ""] if has_tokens(records) else []),
        markdown_table(_COLUMNS, (_row(record) for record in records)),
        "",
    ]


def has_tokens(records: Sequence[dict[str, Any]]) -> bool:
    """Whether any of the analyses has places of tokens."""
    return any(record.get("isomap") for record in records)


def picture_name(source: str) -> str:
    """The file of a task's picture, in the folder `images` beside the page."""
    return f"inside-{source}.svg"


def picture(records: Sequence[dict[str, Any]]) -> str:
    """The picture of the analyses, at least one, of a data set as SVG."""
    panels = [panel for name in BY_LAYER for panel in _by_layer(name, records)]
    experts = (*_experts(records), *_loads(records))
    return draw([*panels, *experts], groups=[record["run"] for record in records])


def _row(record: dict[str, Any]) -> list[str]:
    figures, bounds = record["figures"], record["bounds"]
    redundancy = figures.get("head_redundancy", {}).get("mean")
    return [
        record["run"],
        str(record["samples"]),
        _number(figures["total_factor"]["mean"][-1]),
        "" if bounds is None else f"[{bounds['low'][-1]:.2f}, {bounds['high'][-1]:.2f}]",
        _number(figures["entropy"]["mean"][-1]),
        _number(figures["cosine_similarity"]["mean"][-1]),
        "" if redundancy is None else _number(sum(redundancy) / len(redundancy)),
        _number(record["correlation"]),
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _by_layer(name: str, records: Sequence[dict[str, Any]]) -> Iterator[Panel]:
    lines: list[Line] = []
    depth = max(len(record["figures"]["entropy"]["mean"]) for record in records)
    for record in records:
        run, figure, bounds = record["run"], record["figures"].get(name), record["bounds"]
        if figure is None:
            continue
        band = figure["low"], figure["high"]
        lines.append(Line(group=run, values=figure["mean"], band=band))
        if name == "total_factor" and bounds is not None:
            lines += [Line(group=run, values=end, dashed=True) for end in bounds.values()]
    if any(value is not None for line in lines for value in line.values):
        layers = list(range(1, depth + 1))
        yield Panel(title=BY_LAYER[name], x_title="layer", x=layers, lines=lines)


def _loads(records: Sequence[dict[str, Any]]) -> Iterator[Panel]:
    loads = [(each["run"], each["expert_load"]) for each in records if each.get("expert_load")]
    lines = [
        Line(group=run, values=[None if layer is None else layer[expert] for layer in found])
        for run, found in loads
        for expert in range(max(len(layer or ()) for layer in found))
    ]
    if lines:
        layers = list(range(1, max(len(line.values) for line in lines) + 1))
        yield Panel(title="mean load of each expert", x_title="layer", x=layers, lines=lines)


def _experts(records: Sequence[dict[str, Any]]) -> Iterator[Panel]:
    weights = [(each["run"], each["expert_weights"]) for each in records if each["expert_weights"]]
    if not weights:
        return
    depth = max(len(found["mean"]) for _, found in weights)
    means = [
        Line(group=run, values=expert)
        for run, found in weights
        for expert in zip(*found["mean"], strict=True)
    ]
    title = "mean weight of each expert"
    yield Panel(title=title, x_title="layer", x=list(range(1, depth + 1)), lines=means)
    shares = [
        Line(group=run, values=[sum(part) / len(part) for part in zip(*found, strict=True)])
        for run, found in ((run, found["histogram"]) for run, found in weights)
    ]
    centers = [(bin_ + 0.5) / BINS for bin_ in range(BINS)]
    yield Panel(title="share of expert weights", x_title="weight", x=centers, lines=shares)

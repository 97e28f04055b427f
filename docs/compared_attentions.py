"""What attentions leave standing under attack, from the records of `attention_comparison`."""

import re
from collections.abc import Sequence
from typing import Any

from benchmarks.attention_comparison import BY_SEVERITY
from core.tables import markdown_table
from results.layer_chart import Line, Panel, draw

PICTURE = "images/severity.svg"
_ABOUT = (
    "Accuracy in % on test images, unchanged and under attack, of models trained with the same "
    "budget of steps; below it by how much it lies above that of the first model on the same "
    "images, with a 95 % interval. Many pairs are compared: one interval in twenty leaves out the "
    "truth by chance.\n\n"
    "![Accuracy by severity of fog and of pixelation](images/severity.svg)\n\n"
)
_CASE = re.compile(r"(?P<run>[\w-]+?)( minus (?P<other>[\w-]+))?: (?P<what>.+)")
_SEVERITY = re.compile(r"(?P<name>\w+), severity (?P<severity>\d), \d+ images")


def comparison_table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each model: accuracies, and differences from the first one."""
    accuracies, differences = _shares(rows)
    first = next(iter(accuracies))
    columns = [what for what in accuracies[first] if not _SEVERITY.fullmatch(what)]
    lines = []
    for run, own in accuracies.items():
        cells = [_percent(own[what]["measured"]) if what in own else "" for what in columns]
        apart = differences.get((run, first), {})
        signed = [_signed(apart[what]) if what in apart else "" for what in columns]
        lines.append(
            [run, *(" ".join(filter(None, both)) for both in zip(cells, signed, strict=True))]
        )
    return _ABOUT + markdown_table(("model", *columns), lines)


def severity_picture(rows: Sequence[dict[str, Any]]) -> str:
    """Accuracy by severity of fog and of pixelation as SVG, a line for each model."""
    accuracies, _ = _shares(rows)
    found: dict[str, dict[str, dict[int, float]]] = {name: {} for name in BY_SEVERITY}
    for run, own in accuracies.items():
        for what, row in own.items():
            if match := _SEVERITY.fullmatch(what):
                values = found[match["name"]].setdefault(run, {})
                values[int(match["severity"])] = 100 * row["measured"]
    panels = []
    for name, by_run in found.items():
        severities = sorted({severity for values in by_run.values() for severity in values})
        lines = [
            Line(group=run, values=[v.get(s) for s in severities]) for run, v in by_run.items()
        ]
        panels.append(
            Panel(title=f"{name}: accuracy in %", x_title="severity", x=severities, lines=lines)
        )
    return draw(panels, groups=list(accuracies))


def _shares(rows: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
    """Rows of accuracies by run and case, and of differences by pair of runs and case."""
    accuracies: dict[str, Any] = {}
    differences: dict[tuple[str, str], Any] = {}
    for row in rows:
        match = _CASE.fullmatch(row["case"])
        if match is None or row["unit"] != "share":
            continue
        run, other, what = match["run"], match["other"], match["what"]
        own = differences.setdefault((run, other), {}) if other else accuracies.setdefault(run, {})
        own[what] = row
    return accuracies, differences


def _signed(row: dict[str, Any]) -> str:
    low, high = row["spread"]
    shares = (f"{100 * share:+.1f}" for share in (row["measured"], low, high))
    return "({}: {} to {})".format(*shares)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"

"""`python -m docs.generate`: write the pages that are made from code and records.

`reference/settings.md` comes from the service's settings, `benchmarks.md`, `images/proofs.svg`,
`images/severity.svg` and `images/scaling-*.svg` from the records in `benchmarks/results`. A test
compares them with what lies here.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.complexity import AIMS
from core.tables import markdown_table
from docs import attention_costs, compared_attentions, proved_texts
from service.settings import table

DOCS = Path(__file__).parent
RECORDS = DOCS.parent / "benchmarks" / "results"
_TABLES = {
    "attention_comparison": compared_attentions.comparison_table,
    "attention_scaling": attention_costs.scaling_table,
    "robust_attentions": attention_costs.robust_table,
}
_OF_IMAGES = re.compile(
    r"(?P<model>[\w-]+), (?P<count>\d+) images(, (?P<set>.+))?: "
    r"(?P<what>clean|proved|robust) accuracy"
)
_PAIR = re.compile(
    r"(?P<attack>.+), (?P<box>papers' box|pixels)( \([^)]*\))?: "
    r"(?P<first>[\w-]+) minus (?P<second>[\w-]+), (?P<way>.+)"
)
_BOTH = (
    "Robust accuracy in %, and its difference with a 95 % interval of the paired images, by how "
    "gradients treat m. The papers' box is a replication and not a claim about pixels."
)
_PROVED_IMAGES = (
    "Small models of images, in % of as many test images: clean accuracy, then proved accuracy – "
    "accuracy under attacks in the same set, where some were run; what lies between is open. "
    "`bounded-C` is `model.token_bound=C` with `train.replaced=2`; `cifar10` is "
    "such a model of width 128, C = 5."
)


def pages() -> dict[str, str]:
    """The text of every generated page, by its path below this folder."""
    return {
        "reference/settings.md": settings_page(),
        "benchmarks.md": benchmarks_page(),
        "images/proofs.svg": proved_texts.curves(_rows(RECORDS / "proofs.jsonl")),
        **attention_costs.pictures(_rows(RECORDS / "attention_scaling.jsonl")),
        **_severities(),
    }


def _severities() -> dict[str, str]:
    path = RECORDS / "attention_comparison.jsonl"
    if not path.is_file():
        return {}
    return {compared_attentions.PICTURE: compared_attentions.severity_picture(_rows(path))}


def settings_page() -> str:
    """Every setting with its default and meaning."""
    head = "Environment variables, all optional. Written by `python -m docs.generate`.\n"
    return f"# Settings\n\n{head}\n{table()}\n"


def benchmarks_page() -> str:
    """The recorded rows of every benchmark that compare something or have a target."""
    head = (
        "Every row is a record in [`benchmarks/results`](../benchmarks/results), written by "
        "`./assay bench NAME`; this page is written by `python -m docs.generate`. "
        "A ratio is the median of interleaved pairs of one run, with the spread of the pairs. "
        "Absolute times stand in the records only: the machines were shared. "
        "Assay 0.1.0 was measured before native attacks, 7-bit int8 and FastAPI. "
        "Of complexity, most families were tried, with `--limit 6` and while others used the "
        "cores, which `/livez` shows; complexity_before is the commit before its findings.\n"
    )
    sections = [_section(path) for path in sorted(RECORDS.glob("*.jsonl"))]
    return "\n".join(["# Benchmarks\n", head, *sections])


def _section(path: Path) -> str:
    rows = _rows(path)
    families = [row for row in rows if "figures" in row]
    rows = [row for row in rows if row not in families]
    shown = [row for row in rows if row["target"] is not None or row["unit"] == "ratio"]
    if not shown and path.stem not in _TABLES:
        shown = rows
    measured_on = {_measured_on(row) for row in families + rows}
    columns = ("case", "measured", "spread", "target", "met", "samples")
    parts = [f"## {path.stem}", "; ".join(sorted(measured_on))]
    if families:
        parts += [_aims(families), _missing(families)]
    if path.stem in _TABLES:
        parts.append(_TABLES[path.stem](rows))
    if brackets := proved_texts.brackets(rows):
        parts.append(brackets)
    if brackets := _image_brackets(rows):
        parts += [_PROVED_IMAGES, brackets]
    if pairs := _pairs(rows):
        return "\n\n".join([*parts, _BOTH, pairs]) + "\n"
    if shown:
        parts.append(markdown_table(columns, [_cells(row) for row in shown]))
    return "\n\n".join(parts) + "\n"


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _measured_on(row: dict[str, Any]) -> str:
    versions = row["versions"]
    commit = f" ({versions['commit']})" if "commit" in versions else ""
    return f"Assay {versions['assay']}{commit} on {row['machine']}"


def _aims(families: Sequence[dict[str, Any]]) -> str:
    """How many families of requests keep each aim."""
    kept = sum(row["met"] for row in families)
    rows = []
    for name, aim in AIMS.items():
        figures = [row["figures"][name] for row in families if name in row["figures"]]
        missed = sum(name in row["missed"] for row in families)
        if figures:
            rows.append([name, f"≤ {aim:g}", len(figures) - missed, missed, f"{max(figures):.4g}"])
    head = f"{kept} of {len(families)} families of requests keep every aim."
    return f"{head}\n\n{markdown_table(('aim', 'most', 'kept', 'missed', 'worst'), rows)}"


def _missing(families: Sequence[dict[str, Any]]) -> str:
    """The families that miss an aim, with all their figures."""
    rows = []
    for row in families:
        figures, missed = row["figures"], row["missed"]
        cells = [f"**{value}**" if name in missed else value for name, value in figures.items()]
        if missed:
            rows.append([row["case"], *cells])
    if not rows:
        return "None misses an aim."
    return markdown_table(("family", *families[0]["figures"]), rows)


def _image_brackets(rows: Sequence[dict[str, Any]]) -> str:
    """What is proved of images, and what nothing broke, by set of changes and model."""
    found: dict[str, dict[str, list[float]]] = {}
    models: dict[str, None] = {}
    for row in rows:
        if match := _OF_IMAGES.fullmatch(row["case"]):
            model = f"{match['model']}, {match['count']} images"
            models[model] = None
            own = found.setdefault(match["set"] or "unchanged", {})
            own.setdefault(model, []).append(100 * row["measured"])
    lines = [
        [name, *(" – ".join(f"{share:.0f}" for share in own.get(each, [])) for each in models)]
        for name, own in found.items()
    ]
    return markdown_table(("set", *models), lines) if lines else ""


def _pairs(rows: Sequence[dict[str, Any]]) -> str:
    """Elliptical attention minus dot-product attention: a table of each pair of models."""
    pairs: dict[tuple[str, str], dict[str, list[str]]] = {}
    columns = dict.fromkeys(("attack", "space", "dot product"))
    accuracy = {row["case"]: 100 * row["measured"] for row in rows}
    for row in rows:
        if match := _PAIR.fullmatch(row["case"]):
            about, _, _ = row["case"].rpartition(": ")
            first, second = match["first"], match["second"]
            start = [match["attack"], match["box"], f"{accuracy[about + ': ' + second]:.0f}"]
            low, high = (100 * end for end in row["spread"])
            difference = f"{100 * row['measured']:+.0f} ({low:+.0f} to {high:+.0f})"
            lines = pairs.setdefault((first, second), {})
            lines.setdefault(about, start).append(difference)
            columns |= {f"minus it, {match['way']}": None}
    return "\n\n".join(
        f"`{first}` minus `{second}`:\n\n{markdown_table(tuple(columns), list(lines.values()))}"
        for (first, second), lines in pairs.items()
    )


def _cells(row: dict[str, Any]) -> list[str]:
    low, high = row["spread"]
    sign = "≤" if row["better"] == "lower" else "≥"
    met = {True: "yes", False: "**no**", None: ""}[row["met"]]
    target = "" if row["target"] is None else f"{sign} {row['target']:.4g}"
    measured = f"{row['measured']:.4g} {row['unit']}".replace(" ratio", "")
    return [row["case"], measured, f"{low:.4g} – {high:.4g}", target, met, str(row["samples"])]


def main() -> None:
    """Write the pages."""
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

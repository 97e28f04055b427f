"""`python -m docs.generate`: write the pages that are made from code and records.

`reference/settings.md` comes from the service's settings, `benchmarks.md` from the records in
`benchmarks/results`. A test compares both with what lies here.
"""

import json
from pathlib import Path
from typing import Any

from core.tables import markdown_table
from service.settings import table

DOCS = Path(__file__).parent
RECORDS = DOCS.parent / "benchmarks" / "results"


def pages() -> dict[str, str]:
    """The text of every generated page, by its path below this folder."""
    return {"reference/settings.md": settings_page(), "benchmarks.md": benchmarks_page()}


def settings_page() -> str:
    """Every setting with its default and meaning."""
    head = "Environment variables, all optional. Written by `python -m docs.generate`.\n"
    return f"# Settings\n\n{head}\n{table()}\n"


def benchmarks_page() -> str:
    """The recorded rows of every benchmark that compare something or have a target."""
    head = (
        "Every row is a record in [`benchmarks/results`](../benchmarks/results), written by "
        "`python -m benchmarks NAME`; this page is written by `python -m docs.generate`. "
        "A ratio is the median of interleaved pairs of one run, with the spread of the pairs. "
        "Absolute times stand in the records only: the machines were shared. "
        "Assay 0.1.0 was measured before native attacks, 7-bit int8 and FastAPI.\n"
    )
    sections = [_section(path) for path in sorted(RECORDS.glob("*.jsonl"))]
    return "\n".join(["# Benchmarks\n", head, *sections])


def _section(path: Path) -> str:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    shown = [row for row in rows if row["target"] is not None or row["unit"] == "ratio"] or rows
    measured_on = {f"Assay {row['versions']['assay']} on {row['machine']}" for row in rows}
    columns = ("case", "measured", "spread", "target", "met", "samples")
    body = markdown_table(columns, [_cells(row) for row in shown])
    return f"## {path.stem}\n\n{'; '.join(sorted(measured_on))}\n\n{body}\n"


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

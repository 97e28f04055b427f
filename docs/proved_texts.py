"""What is proved of texts, from the records of the benchmark `proofs`: a table, and curves."""

import re
from collections.abc import Sequence
from typing import Any

from core.tables import markdown_table
from results.layer_chart import Line, Panel, draw

_ABOUT = (
    "Small models of texts (width 64, one layer, minutes of training on parts of the data), in % "
    "of 300 test texts: clean accuracy; with so many pieces replaced proved accuracy – accuracy "
    "under `worst-pieces`, what lies between is open; with so many words mistyped (slips) proved "
    "accuracy, on the first 100 of them{words}. The models see each piece's position, but no "
    "interaction between pieces; the bag of pieces is the same model without positions, the plain "
    "reference. `replaced` is `train.replaced`, 2 unless it says more, `bounded` is "
    "`model.token_bound`.\n\n"
    "![Clean and proved accuracy of IMDb and AG News by train.replaced](images/proofs.svg)\n\n"
)
_WORDS = (
    " – accuracy under `worst-words`; and the same with so many words replaced by one of eight "
    "that stand in like contexts in the training texts: neighbors and no synonyms"
)
_SHARE = re.compile(
    r"(?P<data>[\w-]+), (?P<model>[\w ,]+?), "
    r"(with (?P<count>\d+) (?P<change>pieces? replaced|words? mistyped|words? of the table "
    r"replaced), )?(?P<what>clean accuracy|proved accuracy|accuracy under worst-(pieces|words))"
)
_UNITS = {"piece": "piece", "mistyped": "slip", "table": "neighbor"}
_STRENGTHS = {"plain": 0, "replaced 1": 1, "replaced": 2, "replaced 5": 5, "replaced 10": 10}
"""Tokens of each sample that training counts on, by the name of the model."""
Shares = dict[str, dict[str, float]]
"""Of a model in %: by what is replaced, or "clean", the figures by their names."""


def brackets(rows: Sequence[dict[str, Any]]) -> str:
    """What is proved, and what nothing broke, of each model that was trained; empty without any."""
    found = _shares(rows)
    if not found:
        return ""
    known = dict.fromkeys(each for own in found.values() for each in own if each != "clean")
    units = list(_UNITS.values())
    edits = sorted(known, key=lambda each: units.index(each.split()[1].rstrip("s")))
    lines = [
        [data, model, f"{own['clean']['clean accuracy']:.0f}"]
        + [" – ".join(f"{share:.0f}" for share in own.get(each, {}).values()) for each in edits]
        for (data, model), own in found.items()
    ]
    words = _WORDS if any("neighbor" in each for each in edits) else ""
    columns = ("data", "model", "clean", *edits)
    return _ABOUT.format(words=words) + markdown_table(columns, lines)


def curves(rows: Sequence[dict[str, Any]]) -> str:
    """Clean and proved accuracy by how many replaced pieces training counted on, as SVG."""
    found = _shares(rows)
    trained = {(data, _STRENGTHS[m]): own for (data, m), own in found.items() if m in _STRENGTHS}
    groups = dict.fromkeys(
        k for own in trained.values() for k in own if "piece" in k or k == "clean"
    )
    panels = []
    for data in dict.fromkeys(data for data, _ in trained):
        x = sorted(strength for name, strength in trained if name == data)
        lines = [
            Line(group=_legend(group), values=[_accuracy(trained[data, s], group) for s in x])
            for group in groups
        ]
        title = f"{data}: accuracy in %"
        panels.append(Panel(title=title, x_title="train.replaced", x=x, lines=lines))
    return draw(panels, groups=[_legend(group) for group in groups])


def _legend(group: str) -> str:
    return group if group == "clean" else f"proved, {group} replaced"


def _accuracy(own: Shares, group: str) -> float | None:
    figures = own.get(group, {})
    return figures.get("clean accuracy", figures.get("proved accuracy"))


def _shares(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], Shares]:
    """By data and model what was measured of it."""
    found: dict[tuple[str, str], Shares] = {}
    for row in rows:
        if match := _SHARE.fullmatch(row["case"]):
            edits = "clean"
            if match["count"]:
                [unit] = [name for word, name in _UNITS.items() if word in match["change"]]
                edits = f"{match['count']} {unit}{'s' * (match['count'] != '1')}"
            own = found.setdefault((match["data"], match["model"]), {})
            own.setdefault(edits, {})[match["what"]] = round(100 * row["measured"], 2)
    return found

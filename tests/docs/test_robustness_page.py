"""docs/guides/evaluate.md names everything that it promises to list."""

import json
from pathlib import Path
from typing import Any

from robustness.attacks.base import NORM_NAMES, options
from robustness.attacks.corruptions.attack import EXTRA_CORRUPTIONS
from robustness.attacks.torchattacks import LIBRARY, REFUSED
from robustness.report.html import FILE as PAGE
from robustness.report.schema import FILE as REPORT
from robustness.report.write import CARD, JUNIT, TABLE
from robustness.sanity.checks import CHECKS, LAST
from robustness.spec import ATTACKS

ROOT = Path(__file__).parents[2]
PAGES = ("guides/evaluate.md", "reference/attacks.md", "reference/report.md")
TEXT = "\n".join((ROOT / "docs" / page).read_text() for page in PAGES)


def rows(section: str) -> dict[str, str]:
    """The table under a heading: by the name in its first column, the rest of the row."""
    lines = TEXT.split(f"\n## {section}\n", 1)[1].split("\n## ")[0].splitlines()
    named = (line.split("|", 2) for line in lines if line.startswith("| `"))
    return {name.strip(" `"): rest for _, name, rest in named}


def test_measured_figures_are_those_of_the_record() -> None:
    path = ROOT / "benchmarks" / "results" / "attack_speed.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    table = TEXT.split("\n## Figures\n", 1)[1]
    found = {}
    for record in records:
        name = record["case"].split(", ")[1]
        if record["unit"] == "ratio":
            low, high = record["spread"]
            found[name] = f"| {record['measured']:.2f} ({low:.2f} - {high:.2f}) |"
        elif record["unit"] == "share":
            plain = float(record["case"].rsplit("(", 1)[1][:-1])
            assert f"| {plain:.3f}, {plain + record['measured']:.3f} |" in table
    assert set(found) == {"pgd", "spsa", "square", "autoattack"}
    assert all(row in table for row in found.values()), found


def shown(default: Any) -> str:
    if isinstance(default, list):
        return str(default[0]) if len(default) <= 5 else ""  # told in words
    return "" if default in (None, {}) else str(default)


def test_table_of_attacks_tells_norms_settings_and_defaults_in_order() -> None:
    assert list(rows("Attacks")) == list(ATTACKS)
    for name, row in rows("Attacks").items():
        norms, given = ATTACKS[name].info.norms, options(ATTACKS[name])
        assert ("l∞" in row, "l2" in row) == ("Linf" in norms, "L2" in norms), name
        for option in (one for one in given if one.name not in ("eps", "norm")):
            assert f"`{option.name}` {shown(option.default)}" in row, name


def test_every_warning_file_of_a_report_and_extra_corruption_is_named() -> None:
    assert set(rows("Sanity checks")) == {code for code, _ in (*CHECKS, LAST)}
    assert {PAGE, REPORT, TABLE, CARD, JUNIT} <= set(rows("The files of a report"))
    assert all(f"`{name}`" in TEXT for name in EXTRA_CORRUPTIONS)


def test_table_of_the_library_is_made_from_its_classes() -> None:
    table = rows("Attacks of torchattacks")
    assert set(table) == {*LIBRARY, *REFUSED}
    for name, entry in LIBRARY.items():
        assert all(f"`{option}` " in table[name] for option in entry.params)
        assert all(NORM_NAMES[norm] in table[name] for norm in entry.norms)
    assert all(why in table[name] for name, why in REFUSED.items())

"""docs/guides/evaluate.md names everything that it promises to list."""

import json
from pathlib import Path
from typing import Any

import pytest

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


def test_table_of_attacks_names_every_attack_in_order() -> None:
    assert list(rows("Attacks")) == list(ATTACKS)


@pytest.mark.parametrize("name", ATTACKS)
def test_table_of_attacks_tells_norms_settings_and_defaults(name: str) -> None:
    row, kind = rows("Attacks")[name], ATTACKS[name]
    assert ("l∞" in row, "l2" in row) == ("Linf" in kind.info.norms, "L2" in kind.info.norms)
    for option in options(kind):
        if option.name not in ("eps", "norm"):
            assert f"`{option.name}` {shown(option.default)}" in row


def shown(default: Any) -> str:
    if isinstance(default, list) and len(default) > 5:
        return ""  # told in words
    if isinstance(default, list):
        return str(default[0])
    return "" if default in (None, {}) else str(default)


def test_table_of_sanity_checks_names_every_warning_and_no_other() -> None:
    assert set(rows("Sanity checks")) == {code for code, _ in (*CHECKS, LAST)}


def test_files_of_a_report_are_named() -> None:
    assert {PAGE, REPORT, TABLE, CARD, JUNIT} <= set(rows("The files of a report"))


def test_extra_corruptions_are_named() -> None:
    assert all(f"`{name}`" in TEXT for name in EXTRA_CORRUPTIONS)


def test_table_of_the_library_is_made_from_its_classes() -> None:
    table = rows("Attacks of torchattacks")
    assert set(table) == {*LIBRARY, *REFUSED}
    for name, entry in LIBRARY.items():
        assert all(f"`{option}` " in table[name] for option in entry.params)
        assert all(NORM_NAMES[norm] in table[name] for norm in entry.norms)
    assert all(why in table[name] for name, why in REFUSED.items())

"""How `benchmarks.complexity` scores requests, and that each of them is what it says."""

import csv
import dataclasses
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from benchmarks.complexity import AIMS, exponent, family_row, grow, measured
from benchmarks.support import nasty
from benchmarks.support.nasty_files import LARGE, PARQUETS, PICTURES, ZIPS, Kind
from benchmarks.support.rows import figure
from benchmarks.support.watched import Case, Server, as_due
from docs import generate
from robustness.spec import EvaluationSpec


def _case(size: int = 1000, cpu: float = 0.01, **more: Any) -> Case:
    usual: dict[str, Any] = {"sent": size, "pixels": 0, "status": 200, "answer": 100, "after": 0.0}
    usual |= {"waits": [0.01] * 10, "memory": 1.0, "ended": False}
    return Case(size=size, cpu=cpu, **usual | more)


class _Scripted(Server):
    """A server whose costs follow a rule."""

    def __init__(self, costs: float, first: float = 0.0) -> None:
        self.costs, self.first, self.measured, self.idle = costs, first, 0, [0.05]

    def measure(self, family: nasty.Family, size: int, limit: float) -> Case:
        """A case of so many CPU seconds a byte, and some more in the first."""
        self.measured += 1
        cpu = self.costs * size + self.first * (self.measured == 1)
        return _case(size, min(limit, cpu), ended=cpu > limit)


_FAMILY = nasty.Family("g", "much", Kind(bytes, 1_000_000), nasty._FILE)


@pytest.mark.parametrize(
    ("costs", "sizes"),
    [
        (0.0, [7812, 31_250, 125_000, 500_000, 1_000_000]),
        (1e-5, [7812, 15_625, 31_250, 62_500, 125_000, 250_000, 500_000, 1_000_000]),
        (1e-4, [7812, 15_625, 31_250, 62_500, 125_000]),
        (1e-2, [7812]),
    ],
)
def test_sizes_grow_up_to_the_limit_or_to_what_costs_too_much(
    costs: float, sizes: Sequence[int]
) -> None:
    cases = list(grow(_FAMILY, _Scripted(costs), 20.0))
    assert [case.size for case in cases] == sizes
    assert [case.cpu for case in cases] == [min(20.0, costs * size) for size in sizes]


def test_what_misses_an_aim_has_a_second_chance() -> None:
    assert measured(_FAMILY, server := _Scripted(0.0, first=0.2), 20.0).missed == []
    assert server.measured == 2 * 5
    assert measured(_FAMILY, server := _Scripted(1e-2), 20.0).missed != []  # it was ended
    assert server.measured == 1


def test_the_exponent_is_the_largest_over_three_sizes_that_can_be_measured() -> None:
    square = [_case(n, cpu) for n, cpu in ((100, 0.02), (200, 0.1), (400, 0.4), (800, 1.6))]
    assert exponent(square, 20) == pytest.approx(2)
    assert exponent([*square, _case(1600, 7.0, ended=True)], 6.4) == pytest.approx(2)
    assert exponent([*square, _case(1600, 0.1)], 20) == pytest.approx(2)
    assert exponent(square[1:3], 20) == pytest.approx(2) and exponent(square[:2], 20) == 0
    line = [_case(n, n / 1000) for n in (50, 100, 200, 400)]
    assert exponent(line, 20) == pytest.approx(1)


@pytest.mark.parametrize(
    ("case", "missed"),
    [
        ({}, []),
        ({"cpu": 0.03}, ["CPU / allowed"]),
        ({"cpu": 1.9, "pixels": 50_000_000}, []),
        ({"cpu": 2.1, "sent": 60_000_000}, ["CPU / allowed"]),
        ({"after": 0.3, "status": 0}, ["CPU s after"]),
        ({"waits": [0.01] * 500 + [0.2]}, ["/livez ms over idle"]),
        ({"waits": [0.105] * 9}, ["/livez p99 ms"]),
        ({"status": 422, "answer": 70_000}, ["error kB"]),
        ({"answer": 70_000}, []),
        ({"status": 500}, ["500"]),
    ],
)
def test_a_family_names_the_aims_that_it_misses(case: dict[str, Any], missed: list[str]) -> None:
    row = family_row(_FAMILY, [_case(), _case(**case)], idle=[0.005, 0.05], limit=20)
    assert (row.missed, row.measured, row.met) == (missed, len(missed), not missed)
    assert set(row.figures) >= AIMS.keys() - {"memory"}


def test_the_page_counts_who_keeps_each_aim_and_shows_who_misses_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        dataclasses.asdict(family_row(_FAMILY, [case], idle=[0.05], limit=20))
        for case in (_case(), _case(cpu=3.0))
    ]
    rows.append(dataclasses.asdict(figure("g: memory", 1.0, "ratio", target=1.1)))
    (tmp_path / "complexity.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setattr(generate, "RECORDS", tmp_path)
    page = generate.benchmarks_page()
    assert "1 of 2 families of requests keep every aim." in page
    assert "| exponent | ≤ 1.2 | 2 | 0 | 0 |" in page and "| g: memory | 1 |" in page
    [shown] = [line for line in page.splitlines() if line.startswith(f"| {_FAMILY.name} |")]
    assert shown.count("**") == 2


def test_a_request_that_waits_stands_for_those_due_meanwhile() -> None:
    assert as_due([0.01, 0.05], every=0.02) == pytest.approx([0.01, 0.05, 0.03, 0.01])


@pytest.mark.parametrize(("name", "kind"), [*PICTURES.items(), *LARGE.items()])
def test_a_nasty_picture_can_be_opened(name: str, kind: Kind) -> None:
    size = 4000 if kind.unit == "pixels" else 500
    content = kind.make(size)
    with Image.open(io.BytesIO(content)) as image:
        if kind.unit == "pixels":
            assert size / 2 < image.width * image.height <= size
        else:
            assert image.width * image.height == kind.pixels or kind.pixels == 0
            assert len(content) > size / 2 or name == "png packed text"
        if kind.pixels == 0:
            image.load()


def test_nasty_archives_and_values_can_be_read() -> None:
    for kind in ZIPS.values():
        with zipfile.ZipFile(io.BytesIO(kind.make(500))) as archive:
            assert archive.namelist()
    for kind in PARQUETS.values():
        assert pq.ParquetFile(io.BytesIO(kind.make(500))).metadata.num_rows
    for kind in nasty.LINES.values():
        assert list(csv.reader(io.StringIO(kind.make(500).decode()), strict=True))
    for kind in nasty.VALUES.values():
        json.loads(kind.make(500))


def test_the_evaluations_would_run() -> None:
    for spec in (nasty.IMAGE_SPEC, nasty.MASK_SPEC, nasty.TEXT_SPEC):
        EvaluationSpec.model_validate_json(spec)


def test_every_family_is_a_request_with_a_name_of_its_own() -> None:
    families = list(nasty.families())
    assert len({family.name for family in families}) == len(families)
    for family in families:
        head, _, body = family.request(1000).partition(b"\r\n\r\n")
        method, _, version = head.partition(b"\r\n")[0].split(b" ")
        assert version == b"HTTP/1.1" and (method == b"POST" or not body)
        assert (
            method == b"GET"
            or f"Content-Length: {len(body)}".encode() in head
            or (family.place.content_type == nasty.CHUNKED and body.endswith(b"0\r\n\r\n"))
        )
    assert set(nasty.ordinary()) < {family.place.route for family in families}

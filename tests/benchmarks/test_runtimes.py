"""The benchmarks of runtimes run to their end, with the rows that they are asked for."""

from collections.abc import Mapping

import pytest

from benchmarks import cold_start, cpu_runtime
from benchmarks.support.rows import Row
from runtimes.registry import installed

_ONCE: Mapping[int, int] = {1: 1, 8: 1}


@pytest.mark.slow
def test_every_runtime_has_a_row_of_seconds_and_one_of_memory() -> None:
    rows = list(cold_start.run(starts=1))
    for unit in ("s", "MiB"):
        cases = [row.case for row in rows if row.unit == unit]
        for name in (*installed(), "auto exact", "auto fast"):
            assert len([case for case in cases if f"224, {name} " in case]) == 1
    assert all(row.target is not None and row.measured > 0 for row in rows)


@pytest.mark.slow
def test_every_runtime_has_a_row_at_each_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    monkeypatch.setattr(cpu_runtime, "PAIRS", _ONCE)
    rows = list(cpu_runtime.run())
    assert len({row.case for row in rows}) == len(rows)
    for batch_size in _ONCE:
        here = [row for row in rows if f"batch-{batch_size}," in row.case]
        for label in ("auto exact", "auto fast", "onnx-cpu int8"):
            [row] = [row for row in here if _is_ratio(row, label) and "stock" in row.case]
            assert row.target is not None
        for name in installed():
            assert [row for row in here if _is_ratio(row, f"{name} fp32") and "stock" in row.case]
            assert [row for row in here if f"{name} fp32, elliptical / dot" in row.case]
        assert len([row for row in here if row.case.endswith("share of the ceiling")]) == 2


def _is_ratio(row: Row, label: str) -> bool:
    return row.unit == "ratio" and f"/ {label}" in row.case

"""The benchmark of runtimes runs to its end, with the rows that it is asked for."""

from collections.abc import Mapping

import pytest

from benchmarks import cpu_runtime
from benchmarks.support.rows import Row
from runtimes.registry import installed

_ONCE: Mapping[int, int] = {1: 1, 8: 1}


@pytest.mark.slow
def test_every_runtime_has_a_row_at_each_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    rows = list(cpu_runtime.run(_ONCE))
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

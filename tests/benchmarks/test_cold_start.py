"""The benchmark of starts runs to its end, with the rows that it is asked for."""

import pytest

from benchmarks import cold_start
from runtimes.registry import installed


@pytest.mark.slow
def test_every_runtime_has_a_row_of_seconds_and_one_of_memory() -> None:
    rows = list(cold_start.run(starts=1))
    for unit in ("s", "MiB"):
        cases = [row.case for row in rows if row.unit == unit]
        for name in (*installed(), "auto exact", "auto fast"):
            assert len([case for case in cases if f"224, {name} " in case]) == 1
    assert all(row.target is not None and row.measured > 0 for row in rows)

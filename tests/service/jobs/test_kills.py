"""What was accepted survives `kill -9`; `python -m benchmarks kills` does this 200 times."""

import pytest

from benchmarks.kills import KINDS, inflict


@pytest.mark.slow
def test_nothing_is_lost_doubled_or_left_over() -> None:
    found = inflict(KINDS, seed=0, seconds=600)
    assert found.kills.total() == len(KINDS) and found.accepted
    assert not found.lost and not found.doubled
    assert not found.differing and not found.orphans

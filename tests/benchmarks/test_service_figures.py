"""How the benchmarks of the service score what they have measured."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks import kills
from benchmarks.isolation import latency_rows
from benchmarks.overload import answer_rows, memory_row, recovered_after, recovery_row
from benchmarks.service_throughput import bare
from benchmarks.support.load import Answer


def _steady(count: int, *, status: int = 200, seconds: float = 0.01) -> list[Answer]:
    """Ten requests a second."""
    return [Answer(number / 10, seconds, status) for number in range(count)]


def test_a_rate_is_of_whole_batches() -> None:
    batches: list[int] = []
    rate = bare(lambda files: batches.append(len(files)), [b""] * 40)(0.01)
    assert rate > 0 and set(batches) == {16}


def test_latencies_are_compared_window_by_window() -> None:
    idle, busy = _steady(20), _steady(20, seconds=0.012)
    ratio, *_ = latency_rows(10, 95, [(idle, busy), (idle, idle)])
    assert ratio.measured == pytest.approx(1.1) and ratio.met


def test_only_some_answers_and_little_growth_are_right_under_overload() -> None:
    good = [*_steady(90), *_steady(5, status=503), *_steady(5, status=429)]
    offered, accepted, wrong, slowest = answer_rows(1, 10, good)
    assert (offered.measured, offered.met) == (10, True)
    assert accepted.measured == 9 and wrong.met and slowest.met
    _, _, wrong, slowest = answer_rows(1, 10, [*good, *_steady(1, status=504), Answer(9, 99, 0)])
    assert wrong.measured == 2 and not wrong.met and slowest.met
    *_, slowest = answer_rows(1, 10, _steady(100, seconds=37.0))
    assert not slowest.met
    samples = [(float(at), 100.0 + (at >= 50) * 9 - (at < 5) * 60) for at in range(101)]
    assert memory_row(1, 100, samples).measured == pytest.approx(1.09)


def test_recovery_needs_two_steady_seconds() -> None:
    late = [Answer(a.due, a.seconds, 503 if a.due < 1.5 else 200) for a in _steady(60)]
    assert recovered_after(late, 0.01) == 1.5
    slow = [Answer(a.due, 0.02 if a.due < 3 else 0.01, 200) for a in _steady(60)]
    assert recovered_after(slow, 0.01) == 3
    assert recovered_after(_steady(60, status=503), 0.01) == np.inf
    assert recovery_row(1, 4.0, late, 0.01).met is False


def test_a_result_is_the_same_whenever_it_was_made(tmp_path: Path) -> None:
    digests = []
    for created, result in (("now", b"1"), ("later", b"1"), ("now", b"2")):
        report = {"created": created, "summary": {"models": []}}
        (tmp_path / "report.json").write_text(json.dumps(report))
        (tmp_path / "report.html").write_text(created)
        (tmp_path / "shard").write_bytes(result)
        digests.append(kills.result_digest(tmp_path))
    assert digests[0] == digests[1] != digests[2]


def test_findings_are_rows_that_should_be_zero() -> None:
    damage = kills.Findings(kills=Counter(worker=2), accepted=5, lost=["a gone"])
    lost, *others = kills.rows(damage)
    assert not lost.met and "a gone" in lost.case and lost.samples == 5
    assert len(others) == 3 and all(row.met for row in others)

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.attention_scaling import LENGTHS, run
from benchmarks.support.rows import figure


def record(path: Path, curve: str, power: float) -> None:
    """Times that grow with a power of N."""
    for length in LENGTHS:
        case = f"{curve}, {length:,} tokens, time"
        row = figure(case, 1e-3 * length**power, "ms")
        with path.open("a") as file:
            file.write(json.dumps(dataclasses.asdict(row)) + "\n")


@pytest.mark.parametrize(("power", "met"), [(1.0, True), (2.0, False)])
def test_recorded_points_give_an_exponent_and_are_not_measured_again(
    power: float, met: bool, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    record(path, "performer, forward", power)
    [row] = run(str(path), attentions=("performer",), forms=("forward",))
    assert row.case == "performer, forward, exponent of time over N, 1,024 to 8,192"
    assert row.measured == power and row.met is met and row.target == 1.15
    assert json.loads(path.read_text().splitlines()[-1])["case"] == row.case
    assert not list(run(str(path), attentions=("performer",), forms=("forward",)))


def test_curve_that_ended_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = figure("fourier, forward, 256 tokens, more than", 60, "s")
    path.write_text(json.dumps(dataclasses.asdict(row)) + "\n")
    assert not list(run(str(path), attentions=("fourier",), forms=("forward",)))

import pytest

from benchmarks.__main__ import main, names
from benchmarks.support.pairs import measure_pairs, median_interval, pair_rows
from benchmarks.support.rows import figure


@pytest.mark.parametrize(
    ("better", "target", "met"),
    [("lower", 1.5, True), ("lower", 0.5, False), ("higher", 0.5, True), ("higher", 1.5, False)],
)
def test_a_row_is_a_median_beside_its_target(better: str, target: float, met: bool) -> None:
    row = figure("c", [0.9, 1.0, 3.0], "s", target=target, better=better)  # pyright: ignore[reportArgumentType]
    assert (row.measured, row.met, row.samples, tuple(row.spread)) == (1.0, met, 3, (0.9, 3.0))
    assert row.machine and row.versions["python"]
    assert figure("c", 1, "s").met is None


def test_pairs_are_measured_in_turn_in_alternating_order() -> None:
    calls: list[str] = []
    pairs = measure_pairs(lambda: calls.append("a"), lambda: calls.append("b"), 4)
    assert len(pairs) == 4 and all(first > 0 and second > 0 for first, second in pairs)
    assert "".join(calls[-8:]) in {"abbaabba", "baabbaab"}


def test_pairs_give_the_medians_of_ratio_and_times() -> None:
    pairs = [(0.010, 0.020), (0.010, 0.011), (0.020, 0.018), (0.010, 0.012), (0.010, 0.0115)]
    ratio, first, second = pair_rows("case", ("x", "y"), pairs, target=1.2)
    assert (ratio.case, ratio.measured, ratio.met) == ("case, y / x", 1.15, True)
    assert tuple(ratio.spread) == (0.9, 2.0)
    assert (first.case, first.measured, first.unit, first.met) == ("case, x", 10.0, "ms", None)
    assert (second.case, second.measured, second.samples) == ("case, y", 12.0, 5)


@pytest.mark.parametrize(
    ("count", "interval"), [(1, (0, 0)), (5, (0, 4)), (100, (40, 60)), (400, (180, 220))]
)
def test_interval_of_the_median_is_made_of_order_statistics(
    count: int, interval: tuple[float, float]
) -> None:
    assert median_interval([float(i) for i in reversed(range(count))]) == interval


def test_an_unknown_benchmark_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export_overhed"]) == 2
    assert "did you mean 'export_overhead'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", names())
def test_a_benchmark_tells_its_own_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    said = capsys.readouterr().out
    assert f"python -m benchmarks {name}" in said
    assert "--pairs PAIRS" in said or name != "isolation"


def test_a_benchmark_says_that_its_data_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    assert main(["service_throughput"]) == 1
    assert "set ASSAY_DATA to the folder that holds photos" in capsys.readouterr().err

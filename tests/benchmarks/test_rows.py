import pytest

from benchmarks.__main__ import main, names
from benchmarks.support.pairs import measure_pairs, pair_rows
from benchmarks.support.rows import figure, median_interval


def test_a_row_is_a_median_beside_its_target() -> None:
    for target in (0.5, 1.5):
        row = figure("c", [0.9, 1.0, 3.0], "s", target=target)
        assert (row.measured, row.samples, row.spread) == (1.0, 3, (0.9, 3.0))
        assert row.met is (target > 1) and row.machine and row.versions["python"]
        assert figure("c", 1, "s", target=target, better="higher").met is (target < 1)
    assert figure("c", 1, "s").met is None


def test_pairs_are_measured_in_turn_and_give_the_medians_of_ratio_and_times() -> None:
    calls: list[str] = []
    pairs = measure_pairs(lambda: calls.append("a"), lambda: calls.append("b"), 4)
    assert len(pairs) == 4 and all(first > 0 and second > 0 for first, second in pairs)
    assert "".join(calls[-8:]) in {"abbaabba", "baabbaab"}
    pairs = [(0.010, 0.020), (0.010, 0.011), (0.020, 0.018), (0.010, 0.012), (0.010, 0.0115)]
    ratio, first, second = pair_rows("case", ("x", "y"), pairs, target=1.2)
    assert (ratio.case, ratio.measured, ratio.met) == ("case, y / x", 1.15, True)
    assert ratio.spread == (0.9, 2.0)
    assert (first.case, first.measured, first.unit, first.met) == ("case, x", 10.0, "ms", None)
    assert (second.case, second.measured, second.samples) == ("case, y", 12.0, 5)
    ratio, _, second = pair_rows("case", ("x", "y"), [(10.0, 12.0)], target=1, rate="images/s")
    assert (ratio.measured, ratio.better, ratio.met) == (1.2, "lower", False)
    assert (second.measured, second.unit, second.better) == (12.0, "images/s", "higher")
    for count, interval in ((1, (0, 0)), (5, (0, 4)), (100, (40, 60)), (400, (180, 220))):
        assert median_interval([float(i) for i in reversed(range(count))]) == interval


@pytest.mark.parametrize("name", names())
def test_a_benchmark_tells_its_own_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    said = capsys.readouterr().out
    assert f"./assay bench {name}" in said
    assert "--pairs PAIRS" in said or name != "isolation"


def test_an_unknown_benchmark_or_missing_data_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    assert main(["cpu_runtim"]) == 2 and main(["service_throughput"]) == 1
    said = capsys.readouterr().err
    assert "did you mean 'cpu_runtime'?" in said
    assert "set ASSAY_DATA to the folder that holds photos" in said

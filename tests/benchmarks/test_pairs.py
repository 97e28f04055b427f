import pytest

from benchmarks.support.pairs import measure_pairs, median_interval, pair_rows


def test_both_calls_are_made_in_turn_in_alternating_order() -> None:
    calls: list[str] = []
    pairs = measure_pairs(lambda: calls.append("a"), lambda: calls.append("b"), 4)
    assert len(pairs) == 4 and all(first > 0 and second > 0 for first, second in pairs)
    assert "".join(calls[-8:]) in {"abbaabba", "baabbaab"}


def test_rows_are_the_medians_of_ratio_and_times() -> None:
    pairs = [(0.010, 0.020), (0.010, 0.011), (0.020, 0.018), (0.010, 0.012), (0.010, 0.0115)]
    ratio, first, second = pair_rows("name", "case", ("x", "y"), pairs, target=1.2)
    assert (ratio.case, ratio.measured, ratio.unit, ratio.met) == (
        "case, y / x",
        1.15,
        "ratio",
        True,
    )
    assert (first.case, first.measured, first.unit, first.met) == ("case, x", 10.0, "ms", None)
    assert (second.case, second.measured, second.samples) == ("case, y", 12.0, 5)
    assert tuple(ratio.spread) == (0.9, 2.0)


@pytest.mark.parametrize(
    ("count", "interval"), [(1, (0, 0)), (5, (0, 4)), (100, (40, 60)), (400, (180, 220))]
)
def test_interval_of_the_median_is_made_of_order_statistics(
    count: int, interval: tuple[float, float]
) -> None:
    low, high = median_interval([float(i) for i in reversed(range(count))])
    assert (low, high) == interval

"""Two calls measured in turn, so that whatever else the machine does falls on both."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch

from benchmarks.support.rows import Row, figure

_WARM_UP = 3
Pairs = Sequence[tuple[float, float]]


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Have torch use so many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure_pairs(
    first: Callable[[], object], second: Callable[[], object], count: int, *, pause: float = 0.0
) -> Pairs:
    """Seconds of both, measured one right after the other; the order changes every time.

    Args:
        first: what to measure.
        second: what to compare with it.
        count: number of pairs.
        pause: seconds before every call, where threads of the last one may still spin.
    """
    pairs = []
    for index in range(-_WARM_UP, count):
        if index % 2:
            late, early = _seconds(second, pause), _seconds(first, pause)
        else:
            early, late = _seconds(first, pause), _seconds(second, pause)
        if index >= 0:
            pairs.append((early, late))
    return pairs


def pair_rows(
    case: str,
    labels: tuple[str, str],
    pairs: Pairs,
    *,
    target: float | None,
    better: Literal["lower", "higher"] = "lower",
) -> Iterator[Row]:
    """The median of second / first over all pairs, then the median time of each.

    Args:
        case: what exactly was measured.
        labels: what the first and the second are.
        pairs: seconds of both, from `measure_pairs`.
        target: what the ratio should reach, if there is a target.
        better: which direction of the ratio is better.
    """
    ratios = [second / first for first, second in pairs]
    between = f"{case}, {labels[1]} / {labels[0]}"
    interval = median_interval(ratios)
    yield figure(between, ratios, "ratio", target=target, better=better, spread=interval)
    for column, label in enumerate(labels):
        times = [1000 * pair[column] for pair in pairs]
        yield figure(f"{case}, {label}", times, "ms", spread=median_interval(times))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Interval of the median at about 95 %: order statistics, from the normal approximation."""
    ordered, half = sorted(values), 0.98 * math.sqrt(len(values))
    low = max(0, math.floor(len(ordered) / 2 - half))
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + half))
    return round(ordered[low], 4), round(ordered[high], 4)


def _seconds(call: Callable[[], object], pause: float) -> float:
    time.sleep(pause)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start

"""Two calls measured in turn, so that whatever else the machine does falls on both."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, TypeVar

import torch

from benchmarks.support.rows import Row, figure

_WARM_UP = 3
Pairs = Sequence[Sequence[float]]
Value = TypeVar("Value")


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
    """Seconds of both, measured in turn, after a few that do not count.

    Args:
        first: what to measure.
        second: what to compare with it.
        count: number of pairs.
        pause: seconds before every call, where threads of the last one may still spin.
    """
    one, other = (partial(_seconds, call, pause) for call in (first, second))
    return [*in_turn(one, other, _WARM_UP + count)][_WARM_UP:]


def in_turn(
    first: Callable[[], Value], second: Callable[[], Value], count: int
) -> Iterator[tuple[Value, Value]]:
    """Pairs of what both return, called one right after the other; the order always changes."""
    for index in range(count):
        if index % 2:
            late, early = second(), first()
        else:
            early, late = first(), second()
        yield early, late


def pair_rows(
    case: str,
    labels: tuple[str, str],
    pairs: Pairs,
    *,
    target: float | None,
    better: Literal["lower", "higher"] = "lower",
    rate: str = "",
) -> Iterator[Row]:
    """The median of second / first over all pairs, then the median time or rate of each.

    Args:
        case: what exactly was measured.
        labels: what the first and the second are.
        pairs: seconds of both, such as from `measure_pairs`, or their rates.
        target: what the ratio should reach, if there is a target.
        better: which direction of the ratio is better.
        rate: unit of the rates, such as "images/s"; empty for seconds.
    """
    ratios = [second / first for first, second in pairs]
    between = f"{case}, {labels[1]} / {labels[0]}"
    yield figure(between, ratios, "ratio", target=target, better=better)
    for column, label in enumerate(labels):
        values = [pair[column] * (1 if rate else 1000) for pair in pairs]
        direction = "higher" if rate else "lower"
        yield figure(f"{case}, {label}", values, rate or "ms", better=direction)


def _seconds(call: Callable[[], object], pause: float) -> float:
    time.sleep(pause)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start

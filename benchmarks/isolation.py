"""Do predictions keep their latency while AutoAttack runs?

`/classify` is asked at half the rate that it sustains with nothing else to do, which is measured
first. Requests are due at their times whether or not those before were answered, and a latency
counts from when the request was due. Windows without and with a running evaluation alternate on one
server, and the ratio is the median over such pairs. The load generator shares the cores.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import httpx
import numpy as np

from benchmarks.support.load import Answer, drive, form_request, sustained, throughput
from benchmarks.support.pairs import pair_rows
from benchmarks.support.rows import Row
from benchmarks.support.server import sample_files, serving, start_evaluation, wait_for
from core.progress import Bar

_MOST_CONNECTIONS = 64
TARGET = 1.3
# Small radii leave much to attack: the evaluation outlasts every window.
_SPEC = {
    "model": "fashion-elliptical",
    "attacks": [{"name": "autoattack", "eps": [f"{n}/255" for n in range(1, 9)]}],
}


def run(*, pairs: int = 7, seconds: float = 20.0) -> Iterable[Row]:
    """Measure pairs of windows, idle and busy.

    Args:
        pairs: how many.
        seconds: length of a window.
    """
    requests = [form_request("/classify", *sample) for sample in sample_files()]
    with serving() as (_, address):
        rate = sustained(requests, address) / 2

        def window() -> Sequence[Answer]:
            """The answers of one window."""
            answers = drive(
                requests, address, connections=_MOST_CONNECTIONS, seconds=seconds, rate=rate
            )
            throughput(answers)  # refuses failures
            return answers

        measured = []
        for _ in Bar(range(pairs), desc="isolation", unit="pair"):
            idle = window()
            with evaluating(address):
                measured.append((idle, window()))
    for percentile in (50, 95):
        yield from latency_rows(rate, percentile, measured)


def latency_rows(
    rate: float, percentile: int, pairs: Sequence[tuple[Sequence[Answer], Sequence[Answer]]]
) -> Iterator[Row]:
    """The median ratio of a percentile of the latencies, then the percentiles themselves.

    Args:
        rate: requests per second.
        percentile: which one.
        pairs: answers of windows, idle and busy.
    """
    latencies = [
        [float(np.percentile([a.seconds for a in window], percentile)) for window in pair]
        for pair in pairs
    ]
    case = f"/classify at half load ({rate:.0f} requests/s), p{percentile}"
    target = TARGET if percentile == 95 else None
    yield from pair_rows(case, ("idle", "while AutoAttack runs"), latencies, target=target)


@contextmanager
def evaluating(address: str) -> Iterator[None]:
    """Have an evaluation running inside the block, and cancel it afterwards."""
    location = start_evaluation(address, _SPEC)
    try:
        wait_for(location, lambda job: job["progress"]["done"] > 0)
        yield
        if httpx.get(location).json()["status"] != "running":
            raise RuntimeError("the evaluation ended before the window did: shorten it")
    finally:
        httpx.delete(location)
        wait_for(location, lambda job: job["status"] not in ("queued", "running"))

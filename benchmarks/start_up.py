"""How long from starting the server to a ready page, and from there to the first prediction?

The first start on a machine also measures which runtime is the fastest; the later ones know.
"""

import tempfile
import time
from collections.abc import Iterable, Sequence
from statistics import median

import httpx

from benchmarks.isolation import sample_files
from benchmarks.rows import Row
from benchmarks.server import started, wait_until_ready

_STARTS = 5


def run() -> Iterable[Row]:
    """Start the server with the demo models several times."""
    with tempfile.TemporaryDirectory() as state:
        first, _ = _start(state)
        ready, predicted = zip(*(_start(state) for _ in range(_STARTS)), strict=True)
    yield _row("first start on a machine to ready page", [first])
    yield _row("start to ready page", ready)
    yield _row("ready to first prediction", predicted)


def _row(case: str, times: Sequence[float]) -> Row:
    return Row(
        name="start_up",
        case=f"demo models, {case}",
        measured=round(median(times), 3),
        unit="s",
        better="lower",
        samples=len(times),
        spread=(round(min(times), 3), round(max(times), 3)),
    )


def _start(state: str) -> tuple[float, float]:
    file = sample_files()[0]
    begin = time.monotonic()
    with started(state) as (process, address):
        wait_until_ready(process, address)
        httpx.get(address).raise_for_status()
        ready = time.monotonic()
        httpx.post(f"{address}/classify", files={"images": file}).raise_for_status()
        return ready - begin, time.monotonic() - ready

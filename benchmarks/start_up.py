"""How long from starting the server to a ready page, and from there to the first prediction?"""

import tempfile
import time
from collections.abc import Iterable
from statistics import median

import httpx

from benchmarks.isolation import sample_files
from benchmarks.rows import Row
from benchmarks.server import started, wait_until_ready

_STARTS = 5


def run() -> Iterable[Row]:
    """Start the server with the demo models several times."""
    ready, first = zip(*(_start() for _ in range(_STARTS)), strict=True)
    for case, times in (("start to ready page", ready), ("ready to first prediction", first)):
        yield Row(
            name="start_up",
            case=f"demo models, {case}",
            measured=round(median(times), 3),
            unit="s",
            better="lower",
            samples=len(times),
            spread=(round(min(times), 3), round(max(times), 3)),
        )


def _start() -> tuple[float, float]:
    file = sample_files()[0]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as state, started(state) as (process, address):
        wait_until_ready(process, address)
        httpx.get(address).raise_for_status()
        ready = time.monotonic()
        httpx.post(f"{address}/classify", files={"images": file}).raise_for_status()
        return ready - begin, time.monotonic() - ready

"""Do predictions keep their latency while an evaluation runs?

`/classify` is asked at a fixed rate, open loop: a request is due at its time whether or not the one
before it was answered, and its latency counts from when it was due. Windows without and with a
running evaluation alternate on one server; the ratio is the median over such pairs.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import httpx
import numpy as np

from benchmarks.rows import Row
from benchmarks.server import ROOT, serving

RATE = 15.0
"""Requests per second."""
WINDOW_S = 20.0
PAIRS = 5
TARGET = 1.5
_SAMPLES = ROOT / "artifacts" / "samples" / "fashion-mnist"
_SPEC = {
    "model": "fashion-elliptical",
    "attacks": [{"name": "pgd", "eps": [f"{n}/255" for n in range(1, 9)], "steps": 100}],
}


def run() -> Iterable[Row]:
    """Measure pairs of windows, idle and busy."""
    with serving() as address:
        asyncio.run(_window(address, 3.0))
        pairs = []
        for _ in range(PAIRS):
            idle = asyncio.run(_window(address, WINDOW_S))
            with _evaluating(address):
                pairs.append((idle, asyncio.run(_window(address, WINDOW_S))))
    for percentile in (50, 95):
        yield from _rows(percentile, pairs)


def sample_files() -> list[tuple[str, bytes]]:
    """Names and contents of the shipped sample images."""
    return [(path.name, path.read_bytes()) for path in sorted(_SAMPLES.rglob("*.png"))]


def _rows(percentile: int, pairs: list[tuple[list[float], list[float]]]) -> Iterator[Row]:
    times = [[float(np.percentile(window, percentile)) for window in pair] for pair in pairs]
    ratios = [busy / idle for idle, busy in times]
    case = f"/classify at {RATE:g} requests/s, p{percentile}"
    columns = [("idle", "ms", [1000 * idle for idle, _ in times], None)]
    columns += [("while an evaluation runs", "ms", [1000 * busy for _, busy in times], None)]
    columns += [("running / idle", "ratio", ratios, TARGET if percentile == 95 else None)]
    for label, unit, values, target in columns:
        yield Row(
            name="isolation",
            case=f"{case}, {label}",
            measured=round(median(values), 3),
            unit=unit,
            better="lower",
            target=target,
            samples=len(values),
            spread=(round(min(values), 3), round(max(values), 3)),
        )


async def _window(address: str, seconds: float) -> list[float]:
    """Latencies in seconds of the requests of one window."""
    files = sample_files()
    async with httpx.AsyncClient(base_url=address, timeout=30) as client:
        begin = time.monotonic()

        async def ask(number: int) -> float:
            due = begin + number / RATE
            await asyncio.sleep(due - time.monotonic())
            answer = await client.post("/classify", files={"images": files[number % len(files)]})
            answer.raise_for_status()
            return time.monotonic() - due

        return await asyncio.gather(*(ask(number) for number in range(int(seconds * RATE))))


@contextmanager
def _evaluating(address: str) -> Iterator[None]:
    """Have an evaluation running inside the block, and cancel it afterwards."""
    images = [("images", file) for file in sample_files()]
    answer = httpx.post(
        f"{address}/v1/evaluations", data={"spec": json.dumps(_SPEC)}, files=images, timeout=60
    ).raise_for_status()
    location = f"{address}{answer.headers['location']}"
    try:
        _wait(location, lambda job: job["progress"]["done"] > 0)
        yield
        if httpx.get(location).json()["status"] != "running":
            raise RuntimeError("the evaluation ended before the window did: lengthen it")
    finally:
        httpx.delete(location)
        _wait(location, lambda job: job["status"] not in ("queued", "running"))


def _wait(location: str, done: Callable[[dict[str, Any]], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done(httpx.get(location).json()):
        if time.monotonic() > deadline:
            raise RuntimeError("the evaluation did not change in time")
        time.sleep(0.1)

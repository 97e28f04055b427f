"""Do predictions keep their latency while AutoAttack runs?

`/classify` is asked at half the rate that it sustains with nothing else to do, which is measured
first. Requests are due at their times whether or not those before were answered, and a latency
counts from when the request was due. Windows without and with a running evaluation alternate on one
server, and the ratio is the median over such pairs. The load generator shares the cores.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from tqdm import tqdm

from benchmarks.support.load import Answer, drive, form_request, throughput, write_requests
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT, serving

CONNECTIONS = 16
_MOST_CONNECTIONS = 64
TARGET = 1.3
_SAMPLES = ROOT / "artifacts" / "samples" / "fashion-mnist"
_SUSTAINED_S = 6.0
_PATIENCE_S = 120.0
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
    with tempfile.TemporaryDirectory() as folder, serving() as (_, address):
        file = Path(folder) / "requests"
        write_requests(file, [form_request("/classify", *sample) for sample in sample_files()])
        rate = sustained(file, address) / 2

        def window() -> Sequence[Answer]:
            """The answers of one window."""
            answers = drive(
                file, address, connections=_MOST_CONNECTIONS, seconds=seconds, rate=rate
            )
            throughput(answers)  # refuses failures
            return answers

        measured = []
        for _ in tqdm(range(pairs), desc="isolation", unit="pair"):
            idle = window()
            with _evaluating(address):
                measured.append((idle, window()))
    for percentile in (50, 95):
        yield from latency_rows(rate, percentile, measured)


def sustained(file: Path, address: str) -> float:
    """Answers per second at 16 connections, measured after as long a warm-up."""
    drive(file, address, connections=CONNECTIONS, seconds=_SUSTAINED_S)
    return throughput(drive(file, address, connections=CONNECTIONS, seconds=_SUSTAINED_S))


def sample_files() -> list[tuple[str, bytes]]:
    """Names and contents of the shipped sample images."""
    return [(path.name, path.read_bytes()) for path in sorted(_SAMPLES.rglob("*.png"))]


def latency_rows(
    rate: float, percentile: int, pairs: Sequence[tuple[Sequence[Answer], Sequence[Answer]]]
) -> Iterator[Row]:
    """A percentile of the latencies of each kind of window, and the median of their ratios.

    Args:
        rate: requests per second.
        percentile: which one.
        pairs: answers of windows, idle and busy.
    """
    times = [
        [1000 * float(np.percentile([a.seconds for a in window], percentile)) for window in pair]
        for pair in pairs
    ]
    case = f"/classify at half load ({rate:.0f} requests/s), p{percentile}"
    ratios = [busy / idle for idle, busy in times]
    yield figure(f"{case}, idle", [idle for idle, _ in times], "ms")
    yield figure(f"{case}, while AutoAttack runs", [busy for _, busy in times], "ms")
    yield figure(
        f"{case}, running / idle", ratios, "ratio", target=TARGET if percentile == 95 else None
    )


@contextmanager
def _evaluating(address: str) -> Iterator[None]:
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


def start_evaluation(address: str, spec: Mapping[str, Any], *, samples: int | None = None) -> str:
    """Send an evaluation of the first sample images, or of all; returns its address."""
    images = [("images", file) for file in sample_files()[:samples]]
    url, form = f"{address}/v1/evaluations", {"spec": json.dumps(spec)}
    answer = httpx.post(url, data=form, files=images, timeout=60).raise_for_status()
    return f"{address}{answer.headers['location']}"


def wait_for(location: str, done: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until an evaluation is in some state.

    Raises:
        RuntimeError: it was not in time.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while not done(httpx.get(location).json()):
        if time.monotonic() > deadline:
            raise RuntimeError("the evaluation did not change in time")
        time.sleep(0.1)

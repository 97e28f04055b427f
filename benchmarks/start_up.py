"""How long from starting the server to a ready page and a first prediction, and in what memory?

The first start on a machine also measures which runtime is the fastest; the later ones know. Memory
is that of all processes of the server, what they share counted once (PSS), a while after they
have become idle: once just started, once after predictions on every core.
"""

import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
from tqdm import tqdm

from benchmarks.isolation import sample_files
from benchmarks.support.load import drive, form_request, throughput, write_requests
from benchmarks.support.rows import Row
from benchmarks.support.server import pss, started, wait_until_ready

NAME = "start_up"
_STARTS = 5
_READY_TARGET_S = 5.0
_MEMORY_TARGET_MIB = 1024.0
_IDLE_S = 3.0


@dataclass(frozen=True, slots=True)
class _Start:
    ready: float
    predicted: float
    idle: float
    used: float


def run(starts: int = _STARTS) -> Iterable[Row]:
    """Start the server with the demo models several times.

    Args:
        starts: how often, after the first.
    """
    with tempfile.TemporaryDirectory() as state:
        first = _start(state)
        later = [_start(state) for _ in tqdm(range(starts), desc=NAME, unit="start")]
    yield _row("first start on a machine to ready page", "s", [first.ready], _READY_TARGET_S)
    yield _row("start to ready page", "s", [one.ready for one in later], _READY_TARGET_S)
    yield _row("ready to first prediction", "s", [one.predicted for one in later])
    memory = "memory of all processes (PSS)"
    yield _row(f"{memory}, idle", "MiB", [one.idle for one in later], _MEMORY_TARGET_MIB)
    used = f"{memory}, idle after predictions"
    yield _row(used, "MiB", [one.used for one in later], _MEMORY_TARGET_MIB)


def _row(case: str, unit: str, values: Sequence[float], target: float | None = None) -> Row:
    return Row(
        name=NAME,
        case=f"demo models, {case}",
        measured=round(median(values), 3),
        unit=unit,
        better="lower",
        target=target,
        samples=len(values),
        spread=(round(min(values), 3), round(max(values), 3)),
    )


def _start(state: str) -> _Start:
    samples = sample_files()
    begin = time.monotonic()
    with started(state) as (process, address):
        wait_until_ready(process, address)
        httpx.get(address).raise_for_status()
        ready = time.monotonic()
        httpx.post(f"{address}/classify", files={"images": samples[0]}).raise_for_status()
        predicted = time.monotonic()
        time.sleep(_IDLE_S)
        idle = pss(process.pid)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "requests"
            write_requests(file, [form_request("/classify", *sample) for sample in samples])
            throughput(drive(file, address, connections=16, seconds=3))
        time.sleep(_IDLE_S)
        return _Start(ready - begin, predicted - ready, idle, pss(process.pid))

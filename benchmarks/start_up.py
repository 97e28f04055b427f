"""How long from starting the server to a ready page and a first prediction, and in what memory?

The first start on a machine also measures which runtime is the fastest; the later ones know. Memory
is that of all processes of the server, what they share counted once (PSS), a while after they
have become idle: once just started, once after predictions on every core.
"""

import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import httpx
from tqdm import tqdm

from benchmarks.isolation import sample_files
from benchmarks.support.load import drive, form_request, throughput, write_requests
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import pss, started, wait_until_ready

_READY_TARGET_S = 5.0
_MEMORY_TARGET_MIB = 1024.0
_IDLE_S = 3.0


@dataclass(frozen=True, slots=True)
class _Start:
    ready: float
    predicted: float
    idle: float
    used: float


def run(starts: int = 5) -> Iterable[Row]:
    """Start the server with the demo models several times.

    Args:
        starts: how often, after the first.
    """
    with tempfile.TemporaryDirectory() as state:
        first = _start(state)
        later = [_start(state) for _ in tqdm(range(starts), desc="start_up", unit="start")]
    ready = [one.ready for one in later]
    yield figure(
        "demo models, first start on a machine to ready page", first.ready, "s",
        target=_READY_TARGET_S,
    )  # fmt: skip
    yield figure("demo models, start to ready page", ready, "s", target=_READY_TARGET_S)
    yield figure("demo models, ready to first prediction", [one.predicted for one in later], "s")
    memory, target = "demo models, memory of all processes (PSS)", _MEMORY_TARGET_MIB
    yield figure(f"{memory}, idle", [one.idle for one in later], "MiB", target=target)
    used = [one.used for one in later]
    yield figure(f"{memory}, idle after predictions", used, "MiB", target=target)


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

"""How long from starting the server to a ready page and a first prediction, and in what memory?

The first start on a machine also measures which runtime is the fastest; the later ones know. Memory
is that of all processes of the server, what they share counted once (PSS), a while after they
have become idle: once just started, once after predictions on every core.
"""

import tempfile
import time
from collections.abc import Iterable

import httpx

from benchmarks.support.load import CONNECTIONS, drive, form_request, throughput
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import pss, sample_files, started, wait_until_ready
from core.progress import Bar

_READY_TARGET_S = 5.0
_MEMORY_TARGET_MIB = 1024.0
_IDLE_S = 3.0


def run(starts: int = 5) -> Iterable[Row]:
    """Start the server with the demo models several times.

    Args:
        starts: how often, after the first.
    """
    with tempfile.TemporaryDirectory() as state:
        first, *_ = _start(state)
        later = [_start(state) for _ in Bar(range(starts), desc="start_up", unit="start")]
    ready, predicted, idle, used = zip(*later, strict=True)
    case, memory = "demo models", "demo models, memory of all processes (PSS)"
    about = f"{case}, first start on a machine to ready page"
    yield figure(about, first, "s", target=_READY_TARGET_S)
    yield figure(f"{case}, start to ready page", ready, "s", target=_READY_TARGET_S)
    yield figure(f"{case}, ready to first prediction", predicted, "s")
    yield figure(f"{memory}, idle", idle, "MiB", target=_MEMORY_TARGET_MIB)
    yield figure(f"{memory}, idle after predictions", used, "MiB", target=_MEMORY_TARGET_MIB)


def _start(state: str) -> tuple[float, float, float, float]:
    """Seconds to ready and on to a prediction; memory in MiB, idle and idle after predictions."""
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
        requests = [form_request("/classify", *sample) for sample in samples]
        throughput(drive(requests, address, connections=CONNECTIONS, seconds=3))
        time.sleep(_IDLE_S)
        return ready - begin, predicted - ready, idle, pss(process.pid)

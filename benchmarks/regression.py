"""Is the service as fast as in another tree, such as that of an earlier commit?

`git worktree add --detach TREE COMMIT` makes one. Both servers run, and the one that is not being
measured is held still. Windows of both follow each other in changing order, with the load generator
on the same cores, and each figure is the median of the ratios of pairs, this tree's over the other
one's, so that above 1 this tree is better in all of them:

- photos per second of DeiT-tiny at 224 x 224, and sample images per second of the demo models, on
  `onnx-cpu`, each at 16 kept connections,
- latency of `/classify` (95th percentile) at a third of the rate that the other tree sustains,
  while AutoAttack runs on the same server,
- time from the start to a ready page, of one server at a time.
"""

import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import httpx
import numpy as np

from benchmarks.complexity import commit
from benchmarks.isolation import evaluating
from benchmarks.service_throughput import photos
from benchmarks.support.load import CONNECTIONS, drive, form_request, sustained, throughput
from benchmarks.support.pairs import in_turn
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import (
    ROOT,
    pause,
    resume,
    sample_files,
    serving,
    started,
    wait_until_ready,
)
from core.progress import Bar

_TARGET = 0.95
_SHARE = 1 / 3
_MOST_CONNECTIONS = 64
_WRITE = """
import sys
from pathlib import Path
from benchmarks.support.deit_artifact import write_deit_tiny
write_deit_tiny(Path(sys.argv[1]))
"""
Measure = Callable[[], float]
"""A figure of one server that is better when it is larger."""


def run(
    *, source: str = "../earlier", pairs: int = 9, seconds: float = 6.0, only: str = ""
) -> Iterable[Row]:
    """Compare this tree with another one.

    Args:
        source: the other tree.
        pairs: pairs of windows, and of starts.
        seconds: length of a window; three times as long for latencies.
        only: one comparison, of photos, samples, isolation and start; empty: all of them.

    Raises:
        DataError: ASSAY_DATA does not name the folder with the photos.
    """
    trees = (Path(source).resolve(strict=True), ROOT)
    cases = {"photos": _photos, "samples": _samples, "isolation": _isolation, "start": _starts}
    for name in [only] if only else cases:
        with cases[name](trees, seconds) as (there, here):
            both = Bar(in_turn(there, here, pairs), desc=name, total=pairs, unit="pair")
            ratios = [after / before for before, after in both]
        about = f"{_TITLES[name]}, here / {commit(str(trees[0]))['commit']}"
        row = figure(about, ratios, "ratio", target=_TARGET, better="higher")
        yield dataclasses.replace(row, versions=row.versions | commit(str(ROOT)))


_TITLES = {
    "photos": f"/classify, DeiT-tiny 224 on onnx-cpu, {CONNECTIONS} connections, images/s",
    "samples": f"/classify, demo models, {CONNECTIONS} connections, images/s",
    "isolation": "/classify at a third of the rate while AutoAttack runs, 1 / p95",
    "start": "demo models, start to ready page, 1 / s",
}


@contextmanager
def _photos(trees: Sequence[Path], seconds: float) -> Iterator[list[Measure]]:
    requests = [form_request("/classify", "photo", content) for content in photos()]
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / str(place) for place in range(len(trees))]
        for tree, folder in zip(trees, folders, strict=True):  # each as its own code writes it
            subprocess.run([sys.executable, "-c", _WRITE, str(folder)], cwd=tree, check=True)
        settings = [
            {"ASSAY_MODELS": str(folder), "ASSAY_DEFAULT_IMAGE": "deit-tiny"} for folder in folders
        ]
        with _both(trees, settings) as servers:
            yield [partial(_rate, *server, requests, seconds) for server in servers]


@contextmanager
def _samples(trees: Sequence[Path], seconds: float) -> Iterator[list[Measure]]:
    with _both(trees) as servers:
        yield [partial(_rate, *server, _sample_requests(), seconds) for server in servers]


@contextmanager
def _isolation(trees: Sequence[Path], seconds: float) -> Iterator[list[Measure]]:
    requests = _sample_requests()
    with _both(trees) as servers:
        pid, address = servers[0]
        with _awake(pid):
            rate = sustained(requests, address) * _SHARE
        yield [partial(_promptness, *server, requests, 3 * seconds, rate) for server in servers]


@contextmanager
def _starts(trees: Sequence[Path], seconds: float) -> Iterator[list[Measure]]:
    """Seconds do not matter: a start takes what it takes."""
    del seconds
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        measures = [partial(_start, *pair) for pair in zip(trees, (first, second), strict=True)]
        for measure in measures:  # the first start on a machine measures its runtimes
            measure()
        yield measures


def _rate(pid: int, address: str, requests: Sequence[bytes], seconds: float) -> float:
    """Answers per second."""
    with _awake(pid):
        return throughput(drive(requests, address, connections=CONNECTIONS, seconds=seconds))


def _promptness(
    pid: int, address: str, requests: Sequence[bytes], seconds: float, rate: float
) -> float:
    """One over the 95th percentile of the latencies in seconds, while an evaluation runs."""
    with _awake(pid), evaluating(address):
        answers = drive(
            requests, address, connections=_MOST_CONNECTIONS, seconds=seconds, rate=rate
        )
    throughput(answers)  # refuses failures
    return 1 / float(np.percentile([answer.seconds for answer in answers], 95))


def _start(tree: Path, state: str) -> float:
    """One over the seconds from the start to a ready page."""
    begin = time.monotonic()
    with started(state, tree=tree) as (process, address):
        wait_until_ready(process, address)
        httpx.get(address).raise_for_status()
        return 1 / (time.monotonic() - begin)


def _sample_requests() -> list[bytes]:
    return [form_request("/classify", *sample) for sample in sample_files()]


@contextmanager
def _both(
    trees: Sequence[Path], settings: Sequence[Mapping[str, str]] = ({}, {})
) -> Iterator[list[tuple[int, str]]]:
    """Servers of both trees, warm and held still."""
    with ExitStack() as stack:
        servers = []
        for tree, own in zip(trees, settings, strict=True):
            runtime = {"ASSAY_RUNTIME": "onnx-cpu"}  # which is measured to be best varies
            pid, address = stack.enter_context(serving({**runtime, **own}, tree=tree))
            sustained(_sample_requests(), address)
            pause(pid)
            stack.callback(resume, pid)
            servers.append((pid, address))
        yield servers


@contextmanager
def _awake(pid: int) -> Iterator[None]:
    """A server that is held still otherwise."""
    resume(pid)
    try:
        yield
    finally:
        pause(pid)

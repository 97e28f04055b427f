"""How many photos a second does `/classify` answer, against what could be had without HTTP?

DeiT-tiny at 224 x 224, 1,000 photos, one a request, 16 kept connections. Each comparison is a
series of pairs of windows, ours and the other's one right after the other in changing order, and
its figure is the median of the ratios. Whoever is not being measured is held still, because some
servers poll while they are idle. The load generator (`support.load`) runs on the same cores as the
servers and costs each of them the same; the bare runtime has the cores for itself.

- Bare: batches of 16 files, decoded on all cores and then run, in this process. Once ONNX Runtime
  as it comes against ours on `onnx-cpu`; once the fastest runtime against ours on the same.
- Peers: LitServe and MLServer with the same ONNX file and the same preprocessing, see
  `benchmarks.peers.running` for their settings. They run it on ONNX Runtime as it comes; ours as it
  is set by default, on the fastest runtime, and, without a target because the computing is then
  the same and nearly all there is, on `onnx-cpu`.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.peers.graph import Graph
from benchmarks.peers.running import PEERS, serving_peer
from benchmarks.support.deit_artifact import write_deit_tiny
from benchmarks.support.load import CONNECTIONS, drive, form_request, throughput
from benchmarks.support.pairs import Pairs, in_turn, pair_rows
from benchmarks.support.rows import Row
from benchmarks.support.server import pause, resume, serving
from core.progress import Bar
from data.datasets.known import data_folder
from export.select import open_selected
from runtimes.artifact import Artifact

_PHOTOS, _FILE = 1000, "imagenet1k-1perclass-224.parquet"
_STOCK, _DEFAULT, _FASTEST = "onnx-cpu exact", "auto exact", "auto fast"
_COMPARISONS: Mapping[str, Mapping[str, float | None]] = {
    "stock": {_STOCK: 0.8},
    "fastest": {_FASTEST: 0.6},
    "litserve": {_DEFAULT: 1.2, _FASTEST: 1.2, _STOCK: None},
    "mlserver": {_DEFAULT: 1.2, _FASTEST: 1.2, _STOCK: None},
}
"""What ours is compared with, on which runtimes and precisions, and the ratios to reach."""
Measure = Callable[[float], float]
"""Answers per second over so many seconds."""


def run(*, pairs: int = 9, seconds: float = 6.0, only: str = "") -> Iterable[Row]:
    """Compare with the bare runtimes and with the peers.

    Args:
        pairs: pairs of windows.
        seconds: length of a window.
        only: one comparison, of stock, fastest, litserve and mlserver; empty: all of them.

    Raises:
        DataError: ASSAY_DATA does not name the folder with the photos.
    """
    files = photos()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        artifact = write_deit_tiny(folder / "models")
        for case in [only] if only else _COMPARISONS:
            with _other(case, artifact, files, folder) as (title, other):
                for mode, target in _COMPARISONS[case].items():
                    with _ours(artifact, files, mode) as ours:
                        measured = _windows(f"{case}, {mode}", other, ours, pairs, seconds)
                    yield from pair_rows(
                        f"/classify, DeiT-tiny 224, {CONNECTIONS} connections, {mode}",
                        (title, "ours"),
                        measured,
                        target=target,
                        better="higher",
                        rate="images/s",
                    )


def bare(decode: Callable[[Sequence[bytes]], object], files: Sequence[bytes]) -> Measure:
    """A measure of feeding a runtime with batches of files.

    Args:
        decode: from the files of a batch to its logits.
        files: image files, taken in turn.
    """

    def measure(seconds: float) -> float:
        """Images per second, of whole batches."""
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            at = done % (len(files) - CONNECTIONS + 1)
            decode(files[at : at + CONNECTIONS])
            done += CONNECTIONS
        return done / (time.perf_counter() - begin)

    return measure


def _windows(case: str, other: Measure, ours: Measure, count: int, seconds: float) -> Pairs:
    """Rates of both, measured in turn."""
    for measure in (other, ours):
        measure(min(3.0, seconds))
    pairs = in_turn(partial(other, seconds), partial(ours, seconds), count)
    return list(Bar(pairs, desc=case, total=count, unit="pair"))


@contextmanager
def _ours(artifact: Artifact, files: Sequence[bytes], mode: str) -> Iterator[Measure]:
    requests = [form_request("/classify", "photo", content) for content in files]
    runtime, precision = mode.split()
    settings = {"ASSAY_MODELS": str(artifact.folder), "ASSAY_DEFAULT_IMAGE": artifact.name}
    settings |= {"ASSAY_RUNTIME": runtime, "ASSAY_PRECISION": precision}
    with (
        serving(settings) as (pid, address),
        _over_http(pid, address, requests) as measure,
    ):
        yield measure


@contextmanager
def _other(
    case: str, artifact: Artifact, files: Sequence[bytes], folder: Path
) -> Iterator[tuple[str, Measure]]:
    """What ours is compared with: how it is called, and its measure."""
    graph = Graph(artifact.folder)
    if case == "stock":
        yield "bare ONNX Runtime as it comes", bare(graph.logits, files)
    elif case == "fastest":
        runtime = open_selected(artifact, mode="fast", cache=folder / "cache")
        name = f"bare {runtime.name} {runtime.precision}"
        yield name, bare(lambda batch: runtime.predict(graph.inputs(batch)), files)
    else:
        [peer] = [peer for peer in PEERS if peer.name == case]
        requests = [peer.request(content) for content in files]
        with (
            serving_peer(peer, artifact.folder) as (pid, address),
            _over_http(pid, address, requests) as measure,
        ):
            yield peer.title, measure


@contextmanager
def _over_http(pid: int, address: str, requests: Sequence[bytes]) -> Iterator[Measure]:
    """A measure of a server that is held still between its windows."""

    def measure(seconds: float) -> float:
        """Answers per second at `CONNECTIONS` connections."""
        resume(pid)
        try:
            return throughput(drive(requests, address, connections=CONNECTIONS, seconds=seconds))
        finally:
            pause(pid)

    try:
        yield measure
    finally:
        resume(pid)


def photos() -> list[bytes]:
    """The contents of image files, each of another class.

    Raises:
        DataError: ASSAY_DATA names no folder.
        FileNotFoundError: the folder does not hold them.
    """
    images = pq.read_table(data_folder("photos") / _FILE, columns=["image"]).column("image")
    return [row["bytes"] for row in images.slice(0, _PHOTOS).to_pylist()]

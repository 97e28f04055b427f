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
from pathlib import Path

import pyarrow.parquet as pq
from tqdm import tqdm

from benchmarks.peers.graph import Graph
from benchmarks.peers.running import PEERS, serving_peer
from benchmarks.support.deit_artifact import write_deit_tiny
from benchmarks.support.load import drive, form_request, throughput, write_requests
from benchmarks.support.pairs import Pairs, median_interval
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import pause, resume, serving
from data.datasets.known import data_folder
from export.select import open_selected
from runtimes.artifact import Artifact

CONNECTIONS = 16
PHOTOS = 1000
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
    files = photos(PHOTOS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        artifact = write_deit_tiny(folder / "models")
        for case in [only] if only else _COMPARISONS:
            with _other(case, artifact, files, folder) as (title, other):
                for mode, target in _COMPARISONS[case].items():
                    with _ours(artifact, files, folder, mode) as ours:
                        measured = _windows(f"{case}, {mode}", ours, other, pairs, seconds)
                    yield from rate_rows(title, mode, measured, target)


def rate_rows(title: str, mode: str, measured: Pairs, target: float | None) -> Iterator[Row]:
    """The median of ours / theirs over all pairs, then the median rate of each.

    Args:
        title: what ours is compared with.
        mode: runtime and precision of ours.
        measured: answers per second of ours and of the other.
        target: what the ratio should reach.
    """
    case = f"/classify, DeiT-tiny 224, {CONNECTIONS} connections"
    ratios = [ours / other for ours, other in measured]
    columns = (
        (f"ours ({mode}) / {title}", "ratio", ratios, target),
        (f"ours ({mode}) beside {title}", "images/s", [ours for ours, _ in measured], None),
        (f"{title} beside ours ({mode})", "images/s", [other for _, other in measured], None),
    )
    for label, unit, values, goal in columns:
        spread = median_interval(values)
        yield figure(f"{case}, {label}", values, unit, target=goal, better="higher", spread=spread)


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


def _windows(case: str, ours: Measure, other: Measure, count: int, seconds: float) -> Pairs:
    """Rates of both, measured one right after the other; the order changes every time."""
    pairs = []
    for measure in (ours, other):
        measure(min(3.0, seconds))
    for index in tqdm(range(count), desc=case, unit="pair"):
        if index % 2:
            late, early = other(seconds), ours(seconds)
        else:
            early, late = ours(seconds), other(seconds)
        pairs.append((early, late))
    return pairs


@contextmanager
def _ours(artifact: Artifact, files: Sequence[bytes], folder: Path, mode: str) -> Iterator[Measure]:
    requests = [form_request("/classify", "photo", content) for content in files]
    runtime, precision = mode.split()
    settings = {"ASSAY_MODELS": str(artifact.folder), "ASSAY_DEFAULT_IMAGE": artifact.name}
    settings |= {"ASSAY_RUNTIME": runtime, "ASSAY_PRECISION": precision}
    with (
        serving(settings) as (pid, address),
        _over_http(pid, address, requests, folder / "ours") as measure,
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
            _over_http(pid, address, requests, folder / case) as measure,
        ):
            yield peer.title, measure


@contextmanager
def _over_http(pid: int, address: str, requests: Sequence[bytes], file: Path) -> Iterator[Measure]:
    """A measure of a server that is held still between its windows."""
    write_requests(file, requests)

    def measure(seconds: float) -> float:
        """Answers per second at `CONNECTIONS` connections."""
        resume(pid)
        try:
            return throughput(drive(file, address, connections=CONNECTIONS, seconds=seconds))
        finally:
            pause(pid)

    try:
        yield measure
    finally:
        resume(pid)


_FILE = "imagenet1k-1perclass-224.parquet"


def photos(count: int) -> list[bytes]:
    """The contents of so many image files, each of another class.

    Raises:
        DataError: ASSAY_DATA names no folder.
        FileNotFoundError: the folder does not hold them.
    """
    images = pq.read_table(data_folder("photos") / _FILE, columns=["image"]).column("image")
    return [row["bytes"] for row in images.slice(0, count).to_pylist()]

"""How many photos a second does `/classify` answer, against what could be had without HTTP?

DeiT-tiny at 224 x 224, 1,000 photos, one a request, 16 kept connections. Each comparison is a
series of pairs of windows, ours and the other's one right after the other in changing order, and
its figure is the median of the ratios. Whoever is not being measured is held still, because some
servers poll while they are idle. The load generator (`benchmarks.load`) runs on the same cores as
the servers and costs each of them the same; the bare runtime has the cores for itself.

- Bare: batches of 16 files, decoded on all cores and then run, in this process. Once ONNX Runtime
  as it comes against ours on `onnx-cpu`; once the fastest runtime against ours on the same.
- Peers: LitServe and MLServer with the same ONNX file and the same preprocessing, see
  `benchmarks.peers.running` for their settings; ours on `onnx-cpu`.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from tqdm import tqdm

from benchmarks.deit_artifact import write_deit_tiny
from benchmarks.load import drive, form_request, throughput, write_requests
from benchmarks.pairs import Pairs, median_interval
from benchmarks.peers.graph import Graph
from benchmarks.peers.running import PEERS, Peer, serving_peer
from benchmarks.photos import photos
from benchmarks.rows import Row
from benchmarks.server import pause, resume, serving_process
from export.artifact import Artifact
from export.runtime import Runtime, open_runtime

NAME = "service_throughput"
CONNECTIONS = 16
PHOTOS = 1000
_STOCK = {"ASSAY_RUNTIME": "onnx-cpu", "ASSAY_PRECISION": "exact"}
_FASTEST = {"ASSAY_RUNTIME": "auto", "ASSAY_PRECISION": "fast"}
_TARGETS = {"stock": 0.8, "fastest": 0.6, "litserve": 1.2, "mlserver": 1.2}
Measure = Callable[[float], float]
"""Answers per second over so many seconds."""


def parser() -> argparse.ArgumentParser:
    """The options of this benchmark."""
    options = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}", description=__doc__)
    options.add_argument("--pairs", type=int, default=9, help="pairs of windows (%(default)s)")
    options.add_argument("--seconds", type=float, default=8, help="of a window (%(default)s)")
    options.add_argument("--only", choices=tuple(_TARGETS), help="one comparison")
    return options


def run(*, pairs: int = 9, seconds: float = 8, only: str | None = None) -> Iterable[Row]:
    """Compare with the bare runtimes and with the peers.

    Args:
        pairs: pairs of windows.
        seconds: length of a window.
        only: one comparison; None: all of them.

    Raises:
        DataError: ASSAY_DATA does not name the folder with the photos.
    """
    files = photos(PHOTOS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        artifact = write_deit_tiny(folder / "models")
        for case in [only] if only else _TARGETS:
            with _other(case, artifact, files, folder) as (title, other):
                settings = _FASTEST if case == "fastest" else _STOCK
                with _ours(artifact, files, folder, settings) as ours:
                    measured = _windows(case, ours, other, pairs, seconds)
            yield from rate_rows(title, measured, _TARGETS[case])


def rate_rows(title: str, measured: Pairs, target: float) -> Iterator[Row]:
    """The median of ours / theirs over all pairs, then the median rate of each.

    Args:
        title: what ours is compared with.
        measured: answers per second of ours and of the other.
        target: what the ratio should reach.
    """
    case = f"/classify, DeiT-tiny 224, {CONNECTIONS} connections"
    columns = (
        (f"ours / {title}", "ratio", [ours / other for ours, other in measured], target),
        (f"ours beside {title}", "images/s", [ours for ours, _ in measured], None),
        (title, "images/s", [other for _, other in measured], None),
    )
    for label, unit, values, goal in columns:
        yield Row(
            name=NAME,
            case=f"{case}, {label}",
            measured=round(median(values), 3),
            unit=unit,
            better="higher",
            target=goal,
            samples=len(values),
            spread=median_interval(values),
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
def _ours(
    artifact: Artifact, files: Sequence[bytes], folder: Path, settings: dict[str, str]
) -> Iterator[Measure]:
    requests = [form_request("/classify", "photo", content) for content in files]
    models = {"ASSAY_MODELS": str(artifact.folder), "ASSAY_DEFAULT_IMAGE": artifact.name}
    with (
        serving_process(models | settings) as (pid, address),
        _over_http(pid, address, requests, folder / "ours") as measure,
    ):
        yield measure


@contextmanager
def _other(
    case: str, artifact: Artifact, files: Sequence[bytes], folder: Path
) -> Iterator[tuple[str, Measure]]:
    """What ours is compared with: how it is called, and its measure."""
    if case == "stock":
        graph = Graph(artifact.folder)
        yield "bare ONNX Runtime as it comes", bare(graph.logits, files)
    elif case == "fastest":
        runtime = open_runtime(artifact, name="auto", precision="fast", cache=folder / "cache")
        yield f"bare {runtime.name} {runtime.precision}", bare(_decoded(artifact, runtime), files)
    else:
        with _peer(case, artifact, files, folder) as (peer, measure):
            yield peer.title, measure


def _decoded(artifact: Artifact, runtime: Runtime) -> Callable[[Sequence[bytes]], object]:
    graph = Graph(artifact.folder)  # for its decoding alone
    return lambda batch: runtime.predict(graph.inputs(batch))


@contextmanager
def _peer(
    name: str, artifact: Artifact, files: Sequence[bytes], folder: Path
) -> Iterator[tuple[Peer, Measure]]:
    [peer] = [peer for peer in PEERS if peer.name == name]
    requests = [peer.request(content) for content in files]
    with (
        serving_peer(peer, artifact.folder) as (pid, address),
        _over_http(pid, address, requests, folder / name) as measure,
    ):
        yield peer, measure


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

"""What the service measures of itself, for Prometheus.

With several workers every one of them writes its figures into files of a common folder, and
whichever is asked reads them all. What the table of evaluations knows is not measured but read.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from core.files import allocate
from service.processes import by_role

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
# Bytes of a worker's files, by the beginning of their names: for all routes, and 64 models.
_ROOM = {"counter": 1 << 17, "gauge_livesum": 1 << 16, "histogram": 1 << 20}
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The figures of one worker."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self._registry}
        summed: dict[str, Any] = own | {"multiprocess_mode": "livesum"}
        route, model = ["route", "method"], ["model"]
        times: dict[str, Any] = own | {"buckets": _SECONDS}
        self._requests = Counter("assay_requests", "Requests answered", [*route, "status"], **own)
        taken = "From the first byte of a request to the last of its answer"
        self._seconds = Histogram("assay_request_seconds", taken, route, **times)
        self._in_flight = Gauge("assay_requests_in_flight", "Requests being answered", **summed)
        self._queued = Gauge("assay_queue_inputs", "Inputs that wait for a model", model, **summed)
        together = "Inputs computed together"
        self._sizes = Histogram("assay_batch_size", together, model, buckets=_SIZES, **own)
        waited = "How long the oldest request of a batch had waited"
        self._waits = Histogram("assay_batch_queue_seconds", waited, model, **times)
        computed = "How long a batch was computed"
        self._computes = Histogram("assay_batch_compute_seconds", computed, model, **times)

    def began(self) -> None:
        """A request has come."""
        self._in_flight.inc()

    def answered(self, *, route: str, method: str, status: int, seconds: float) -> None:
        """A request is done; `route` is a template, so that the number of series is bounded."""
        method = method if method in _METHODS else "other"
        self._in_flight.dec()
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route, method).observe(seconds)

    def batch(self, model: str, size: int, queue_s: float, compute_s: float) -> None:
        """A batch of `size` inputs was computed whose oldest request had waited for `queue_s`."""
        self._sizes.labels(model).observe(size)
        self._waits.labels(model).observe(queue_s)
        self._computes.labels(model).observe(compute_s)

    def queued(self, model: str, count: int) -> None:
        """Now `count` inputs wait for `model`."""
        self._queued.labels(model).set(count)

    def exposition(self, state: Iterable[Metric]) -> bytes:
        """Everything in Prometheus' text format: the figures of all workers, and `state`."""
        registry = self._registry
        if _FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry) + generate_latest(_Given(state))


class _Given(CollectorRegistry):
    """A registry of metrics that are known already."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        super().__init__()
        self._metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
        """The metrics."""
        return self._metrics


def share_figures(folder: Path) -> None:
    """Write this process' figures into a folder that all workers of the server have in common.

    Called before a `Metrics` is made. What the gauges of dead workers showed is forgotten.
    The files are maps: their room is taken now, since a full disk would kill the process later.

    Raises:
        OSError: there is no room.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[_FOLDER] = str(folder)
    for path in folder.glob("gauge_live*.db"):
        pid = path.stem.rpartition("_")[2]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            mark_process_dead(int(pid), str(folder))
    for name, size in _ROOM.items():
        allocate(folder / f"{name}_{os.getpid()}.db", size)


def check_room(folder: Path, workers: int) -> None:
    """Try whether a folder has room for the figures of so many workers.

    Raises:
        ValueError: it has not.
    """
    probe, size = folder / "room", workers * sum(_ROOM.values())
    try:
        allocate(probe, size)
    except OSError as error:
        need = f"room for {size / 1e6:.1f} MB"
        raise ValueError(f"ASSAY_RUN={folder} must have {need}: {error.strerror}") from error
    finally:
        probe.unlink(missing_ok=True)


def state_metrics(
    *,
    evaluations: Mapping[str, int],
    model_evaluations: int,
    evaluator_alive: bool | None,
    memory: Mapping[str, int],
) -> list[Metric]:
    """What is read at the moment of asking.

    Args:
        evaluations: number of evaluations by status.
        model_evaluations: what all attacks together have asked of models.
        evaluator_alive: None on a host that evaluates nothing.
        memory: bytes by process; see `memory_of`.
    """
    by_state = _gauges("assay_evaluations", "Evaluations by state", "status", evaluations)
    steps = CounterMetricFamily(
        "assay_attack_model_evaluations",
        "Inputs that attacks have put through models: their steps times their samples",
        value=model_evaluations,
    )
    resident = _gauges("assay_memory_bytes", "Memory, shared pages counted once", "process", memory)
    metrics: list[Metric] = [by_state, steps, resident]
    if evaluator_alive is not None:
        alive = GaugeMetricFamily(
            "assay_evaluator_alive", "Whether evaluations are run", value=int(evaluator_alive)
        )
        metrics.append(alive)
    return metrics


def _gauges(name: str, meaning: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def memory_of(server: int) -> dict[str, int]:
    """Proportional set size in bytes of a server's processes, by what they do."""
    sizes: dict[str, int] = {}
    for role, process in by_role(server):
        with suppress(psutil.Error, OSError):  # it has just ended
            memory = process.memory_full_info()
            sizes[role] = sizes.get(role, 0) + getattr(memory, "pss", memory.rss)  # not on a Mac
    return sizes

"""What does m cost in the exported graph? Latency of elliptical over dot-product attention.

DeiT-tiny at 224 x 224 with random weights, both graphs in one process on ONNX Runtime, called in
turn (and in alternating order) so that whatever else the machine does falls on both. The ratio is
the median over pairs; its spread is the interval of the median at 95 %.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from statistics import median

import numpy as np
import torch

import models
from benchmarks.rows import Row
from export.runtime import open_session
from export.threads import available_cores
from export.to_onnx import to_onnx

TARGET = 1.014  # Elliptical Attention, NeurIPS 2024, for DeiT-tiny on a GPU
_PAIRS = {1: 300, 8: 60}
_WARM_UP = 3


def run() -> Iterable[Row]:
    """Compare both graphs at batch 1 and 8, on one thread and on all cores."""
    dot, elliptical = _export("deit_tiny"), _export("deit_tiny_elliptical")
    for threads in sorted({1, available_cores()}):
        for batch_size in _PAIRS:
            images = np.random.default_rng(0).random((batch_size, 3, 224, 224), np.float32)
            first, second = (_caller(graph, threads, images) for graph in (dot, elliptical))
            case = f"DeiT-tiny 224, ONNX, batch {batch_size}, {threads} thread(s)"
            yield from _rows(case, list(_pairs(first, second, _PAIRS[batch_size])))


def _rows(case: str, pairs: list[tuple[float, float]]) -> Iterator[Row]:
    name = "export_overhead"
    ratios = [elliptical / dot for dot, elliptical in pairs]
    yield Row(
        name=name,
        case=f"{case}, elliptical / dot-product",
        measured=round(median(ratios), 4),
        unit="ratio",
        better="lower",
        target=TARGET,
        samples=len(pairs),
        spread=_median_interval(ratios),
    )
    for label, column in (("dot-product", 0), ("elliptical", 1)):
        times = [1000 * pair[column] for pair in pairs]
        yield Row(
            name=name,
            case=f"{case}, {label}",
            measured=round(median(times), 3),
            unit="ms",
            better="lower",
            samples=len(times),
            spread=_median_interval(times),
        )


def _export(name: str) -> bytes:
    torch.manual_seed(0)
    return to_onnx(models.build(name), torch.zeros(2, 3, 224, 224), {})


def _caller(graph: bytes, threads: int, images: np.ndarray) -> Callable[[], object]:
    session = open_session(graph, threads=threads)
    return lambda: session.run(["logits"], {"images": images})


def _pairs(
    first: Callable[[], object], second: Callable[[], object], count: int
) -> Iterator[tuple[float, float]]:
    """Seconds of both, measured one right after the other; the order changes every time."""
    for index in range(-_WARM_UP, count):
        if index % 2:
            late, early = _seconds(second), _seconds(first)
        else:
            early, late = _seconds(first), _seconds(second)
        if index >= 0:
            yield early, late


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _median_interval(values: list[float]) -> tuple[float, float]:
    """Interval of the median at about 95 %: order statistics, from the normal approximation."""
    ordered, half = sorted(values), 0.98 * math.sqrt(len(values))
    low = max(0, math.floor(len(ordered) / 2 - half))
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + half))
    return round(ordered[low], 4), round(ordered[high], 4)

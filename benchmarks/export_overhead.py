"""What does m cost in the exported graph? Latency of elliptical over dot-product attention.

DeiT-tiny at 224 x 224 with random weights, both graphs in one process on one runtime, called in
turn (and in alternating order) so that whatever else the machine does falls on both. The ratio is
the median over pairs; its spread is the interval of the median at 95 %.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
import torch

import models
from benchmarks.support.pairs import measure_pairs, pair_rows
from benchmarks.support.rows import Row
from export.onnx import to_onnx
from runtimes.onnx import open_session
from runtimes.openvino import compile_graph, missing
from runtimes.threads import available_cores

TARGET = 1.01
_PAIRS = {1: 300, 8: 60}


def run() -> Iterable[Row]:
    """Compare both graphs at batch 1 and 8, on one thread and on all cores, on every runtime."""
    dot, elliptical = _export("deit_tiny"), _export("deit_tiny_elliptical")
    for threads in sorted({1, available_cores()}):
        for batch_size in _PAIRS:
            images = np.random.default_rng(0).random((batch_size, 3, 224, 224), np.float32)
            calls = zip(
                _calls(dot, threads, images), _calls(elliptical, threads, images), strict=True
            )
            for (engine, first), (_, second) in calls:
                case = f"DeiT-tiny 224, batch-{batch_size}, {threads} thread(s), {engine}"
                pairs = measure_pairs(first, second, _PAIRS[batch_size])
                yield from pair_rows(case, ("dot-product", "elliptical"), pairs, target=TARGET)


def _export(name: str) -> bytes:
    torch.manual_seed(0)
    return to_onnx(models.build(name), torch.zeros(2, 3, 224, 224), {})


def _calls(
    graph: bytes, threads: int, images: np.ndarray
) -> Iterator[tuple[str, Callable[[], object]]]:
    """The name of every engine and precision, and what runs the graph there."""
    session = open_session(graph, threads=threads)
    yield "onnx-cpu fp32", lambda: session.run(["logits"], {"images": images})
    if missing() is not None:
        return
    for precision in ("fp32", "bf16"):
        request = compile_graph(graph, precision, threads).create_infer_request()
        yield f"openvino {precision}", partial(request.infer, {"images": images})

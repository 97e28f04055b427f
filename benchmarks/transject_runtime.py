"""How much faster is exported TransJect than an exported dot-product transformer?

Both have L = 2 and d = 512 and random weights, read the same text as bytes (256 token ids) with a
mask at batch 1, and run in the same runtime and precision; the transformer has 8 heads and an MLP
of 2048. Its attention is written out in the graph, where OpenVINO finds and fuses it; TorchScript
has torch's fused kernel. They are measured in turn; a ratio is the median over pairs.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.support.long_models import transformer, transject, windows
from benchmarks.support.pairs import measure_pairs, pair_rows, torch_threads
from benchmarks.support.rows import Row
from export.int8 import quantize_dynamic
from export.onnx import to_onnx
from export.torch_files import to_torchscript
from runtimes.onnx import open_session
from runtimes.openvino import compile_graph, missing
from runtimes.threads import available_cores
from runtimes.torchscript import load_torchscript

_LENGTHS = {1024: "1k", 4096: "4k"}
_TARGETS = {1024: 2.0, 4096: 5.0}  # fp32, both on the same runtime
_FLOOR = 1.0  # any other precision, or against a fused kernel
_PAIRS = {1024: 25, 4096: 9}

Feed = dict[str, np.ndarray]
Call = Callable[[Feed], object]


def run() -> Iterable[Row]:
    """Compare at 1k and 4k tokens on every runtime of this CPU."""
    with torch_threads(available_cores()):
        for length in _LENGTHS:
            yield from _rows(length)


def _rows(length: int) -> Iterator[Row]:
    tokens, _ = next(windows(length, 1, train=False, seed=0))
    feed = {"tokens": tokens.numpy(), "mask": np.ones((1, length), bool)}
    for case, target, calls in _cases(length):
        ours, theirs = (partial(call, feed) for call in calls)
        pairs = measure_pairs(ours, theirs, _PAIRS[length])
        yield from pair_rows(
            f"{_LENGTHS[length]} tokens, batch 1, {available_cores()} thread(s), {case}",
            ("TransJect E=4", "dot-product transformer"),
            pairs,
            target=target,
            better="higher",
        )


def _cases(length: int) -> Iterator[tuple[str, float, list[Call]]]:
    """A name, the ratio to reach, and both calls of every case."""
    both = (transject("transject", length), transformer(length))
    graphs = [to_onnx(model, _example(), {}) for model in both]
    yield "onnx-cpu fp32", _TARGETS[length], [_onnx(graph) for graph in graphs]
    yield "onnx-cpu int8 dynamic", _FLOOR, [_onnx(quantize_dynamic(graph)) for graph in graphs]
    yield "torchscript fp32, fused attention", _FLOOR, [_torchscript(model) for model in both]
    if missing() is not None:
        return
    for precision, target in (("fp32", _TARGETS[length]), ("bf16", _FLOOR)):
        calls = [_openvino(graph, precision) for graph in graphs]
        yield f"openvino {precision}, fused attention", target, calls


def _example() -> tuple[Tensor, Tensor]:
    return torch.zeros(2, 64, dtype=torch.long), torch.ones(2, 64, dtype=torch.bool)


def _onnx(graph: bytes) -> Call:
    session = open_session(graph, threads=available_cores())
    return lambda feed: session.run(["logits"], feed)


def _torchscript(model: nn.Module) -> Call:
    module = load_torchscript(to_torchscript(model, _example()))

    @torch.inference_mode()
    def call(feed: Feed) -> Tensor:
        return module(*map(torch.from_numpy, feed.values()))

    return call


def _openvino(graph: bytes, precision: str) -> Call:
    request = compile_graph(graph, precision, available_cores()).create_infer_request()
    return lambda feed: request.infer(feed)

"""How do time and memory of each attention grow with the number of tokens?

One layer of attention alone, with its maps to queries, keys, values and out again, as it stands in
`lra_transformer`: width 64, two heads, batch 1, one thread, no padding, random weights and inputs.
Eager layers are built for N tokens: "forward", and "with gradient" of the input and all weights.
"exported" is the forward pass of one ONNX graph with free batch and length, built for the largest
N, on ONNX Runtime's CPU.

Each point has a process of its own, so that peak memory is its own: by how much its resident memory
grew at most, layer or graph, inputs and outputs included. Times are those of the processor, of
which others may use the rest: medians of several calls after the first. A curve ends where a call
takes more than 60 s or 8 GiB, and a row says so. The exponent is the slope of time over N by least
squares, both as logarithms; its spread are the least and the largest slope between neighbors.

Rows are appended to the record; what is there is not measured again.
"""

import ctypes
import dataclasses
import json
import math
import multiprocessing
import re
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import models
from benchmarks.support.rows import Row, figure
from core.progress import Bar
from export.onnx import write_program
from models.attention.base import Attention, Place
from models.attention.catalog import make_attention
from runtimes.onnx import open_session

FORMS = ("forward", "with gradient", "exported")
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
LINEAR = ("bigbird", "linformer", "longformer", "nystromformer", "performer", "skyformer")
_EXPONENT_TARGET, _EXPONENT_FROM = 1.15, 1024
_MOST_S, _MOST_GIB = 60, 8
_WIDTH, _HEADS = 64, 2
_CALLS, _CALLS_S, _LONG_S = 4, 0.3, 2.0  # at least so many, for so long; but not for longer
_WARM_UP = 64  # tokens
_RECORD = Path(__file__).parent / "results" / "attention_scaling.jsonl"
# Forked from a process that has imported everything, and has started no thread.
_PROCESSES = multiprocessing.get_context("forkserver")


def run(
    record: str = str(_RECORD),
    attentions: tuple[str, ...] = tuple(models.attentions()),
    forms: tuple[str, ...] = FORMS,
    lengths: tuple[int, ...] = LENGTHS,
) -> Iterable[Row]:
    """Measure what the record lacks.

    Args:
        record: file that rows are appended to.
        attentions: of `models.attentions()`.
        forms: of the layer.
        lengths: numbers of tokens, ascending.
    """
    _PROCESSES.set_forkserver_preload([__name__])
    path = Path(record)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    known: dict[str, Any] = {row["case"]: row["measured"] for row in map(json.loads, lines)}
    curves = [f"{name}, {form}" for name in attentions for form in forms]
    for curve in (bar := Bar(curves, desc="curves", unit="curve")):
        bar.set_postfix_str(curve)
        for row in _curve(curve, lengths, known):
            row.name = "attention_scaling"
            known[row.case] = row.measured
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(row)) + "\n")
            yield row


def _curve(curve: str, lengths: Iterable[int], known: dict[str, Any]) -> Iterator[Row]:
    """The rows that a curve lacks; `known` gets them meanwhile."""
    name, form = curve.split(", ")
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder, "graph.onnx")
        for length in lengths:
            point = f"{curve}, {length:,} tokens"
            if f"{point}, more than" in known:
                break
            if f"{point}, time" in known:
                continue
            if form == "exported" and not graph.exists():
                yield from _export(name, graph, known)
            yield from (rows := _point(point, (name, form, length, graph)))
            if len(rows) == 1:
                break
    yield from _exponent(curve, known)


def _point(point: str, what: tuple[str, str, int, Path]) -> list[Row]:
    """Time and peak memory, or the limit that ended the curve."""
    found = _in_process(_measure, *what)
    if isinstance(found, str):
        most = _MOST_S if found == "s" else _MOST_GIB
        return [figure(f"{point}, more than", most, found)]
    seconds, grown = found
    return [
        figure(f"{point}, time", [1000 * each for each in seconds], "ms"),
        figure(f"{point}, peak memory", grown / 2**20, "MiB"),
    ]


def _export(name: str, path: Path, known: dict[str, Any]) -> Iterator[Row]:
    """Write the graph, and say how far its answers are from those of the layer."""
    difference = _in_process(_write_graph, name, path)
    case = f"{name}, exported, largest difference from eager"
    if case not in known:
        yield figure(case, 1e6 * difference, "millionths")


def _exponent(curve: str, known: dict[str, Any]) -> Iterator[Row]:
    """The slope of time over N, of a curve that has reached the end."""
    lengths = [length for length in LENGTHS if length >= _EXPONENT_FROM]
    cases = [f"{curve}, {length:,} tokens, time" for length in lengths]
    case = f"{curve}, exponent of time over N, {lengths[0]:,} to {lengths[-1]:,}"
    if case in known or not all(each in known for each in cases):
        return
    x, y = np.log(lengths), np.log([known[each] for each in cases])
    slopes = np.diff(y) / np.diff(x)
    target = _EXPONENT_TARGET if curve.split(", ")[0] in LINEAR else None
    yield figure(
        case,
        float(np.polyfit(x, y, 1)[0]),
        "",
        target=target,
        samples=len(lengths),
        spread=(float(slopes.min()), float(slopes.max())),
    )


def _in_process(work: Callable[..., object], *arguments: Any) -> Any:
    """What a process of its own returns; "s" or "GiB" where it ran into that limit."""
    receiver, sender = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_child, args=(sender, work, arguments), daemon=True)
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGXCPU:
            return "s"
        about = f"{work.__name__}{arguments}"
        raise RuntimeError(f"{about} ended with {process.exitcode}") from None
    finally:
        process.kill()
        process.join()


def _child(sender: Connection, work: Callable[..., object], arguments: Any) -> None:
    torch.set_num_threads(1)
    try:
        sender.send(work(*arguments))
    except Exception as error:  # neither torch nor ONNX Runtime has a class for it
        if "alloc" not in str(error) and not isinstance(error, MemoryError):
            raise
        sender.send("GiB")


def _measure(name: str, form: str, length: int, graph: Path) -> tuple[list[float], int]:
    """Seconds of the calls, and bytes."""
    _caller(name, form, _WARM_UP, graph)()
    ctypes.CDLL(None).malloc_trim(0)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    limit = _memory("VmData") + _MOST_GIB * 2**30
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    call = _caller(name, form, length, graph)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + _MOST_S, most))
    seconds = [_seconds(call)]
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    while sum(seconds) < _LONG_S and (len(seconds) <= _CALLS or sum(seconds) < _CALLS_S):
        seconds.append(_seconds(call))
    return seconds[1:] or seconds, _memory("VmHWM") - before


def _seconds(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def _memory(name: str) -> int:
    """Bytes of this process, of a line of its status."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


def _caller(name: str, form: str, length: int, graph: Path) -> Callable[[], object]:
    tokens, values = _inputs(length)
    if form == "exported":
        session = open_session(graph, threads=1)
        feed = {"tokens": tokens.numpy(), "values": values.numpy()}
        return lambda: session.run(None, feed)
    layer = _layer(name, length)
    values = values.unflatten(2, (_HEADS, -1)).transpose(1, 2)
    if form == "forward":
        return torch.inference_mode()(lambda: layer(tokens, values))
    tokens.requires_grad_()
    wanted = [tokens, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(tokens, values)[0].sum(), wanted, allow_unused=True)


def _layer(name: str, length: int) -> Attention:
    torch.manual_seed(0)
    place = Place(layer=2, depth=2, length=length)
    return make_attention(_WIDTH, _HEADS, attention=name, place=place).eval()


def _inputs(length: int, batch_size: int = 1) -> tuple[Tensor, Tensor]:
    """Tokens, and the values of a layer before, which elliptical attention reads: (B, N, C)."""
    generator = torch.Generator().manual_seed(length)
    tokens, values = torch.randn(2, batch_size, length, _WIDTH, generator=generator)
    return tokens, values


class _Graph(nn.Module):
    """What a graph of a layer has as inputs and output."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, tokens: Tensor, values: Tensor) -> Tensor:
        """(B, N, C) twice to (B, N, C)."""
        return self.layer(tokens, values)[0]


def _write_graph(name: str, path: Path) -> float:
    """The largest difference between what graph and layer give, over the largest number."""
    layer = _layer(name, LENGTHS[-1])
    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=LENGTHS[-1])}
    with torch.no_grad():
        program = torch.export.export(
            _Graph(layer.graph_form()), _inputs(256, 2), dynamic_shapes=(free, free)
        )
        path.write_bytes(write_program(program))
        tokens, values = _inputs(300, 3)
        expected = layer(tokens, values.unflatten(2, (_HEADS, -1)).transpose(1, 2))[0].numpy()
    feed = {"tokens": tokens.numpy(), "values": values.numpy()}
    [given] = open_session(path, threads=1).run(None, feed)
    return float(np.abs(given - expected).max() / np.abs(expected).max())

"""Calls measured on a device: in turn, by its own clock, with the memory that they take."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.elliptical_overhead import peak_bytes
from benchmarks.support.pairs import Pairs, in_turn
from benchmarks.support.rows import machine

_WARM_UP, _LEAST = 3, 5
_SAMPLE_S = 0.004  # of one measurement, which takes several short calls
Call = Callable[[], object]
Seconds = Callable[[Call, int], float]
PRECISIONS = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "tf32": torch.float32,
    "fp32": torch.float32,
}


def default_device() -> str:
    """ "cuda" where there is one, or "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_name(device: str) -> str:
    """The GPU, if it is one, and the machine that it is part of."""
    return f"{torch.cuda.get_device_name()}, {machine()}" if device == "cuda" else machine()


def synchronize(device: str) -> None:
    """Wait until the device has done everything."""
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def rounding(precision: str) -> Iterator[torch.dtype]:
    """Let products of float32 be rounded to TensorFloat-32 under "tf32" and nowhere else.

    Yields:
        The type of weights and inputs.
    """
    parts: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [part.allow_tf32 for part in parts]
    try:
        for part in parts:
            part.allow_tf32 = precision == "tf32"
        yield PRECISIONS[precision]
    finally:
        for part, allowed in zip(parts, before, strict=True):
            part.allow_tf32 = allowed


def by_events(call: Call, repeats: int) -> float:
    """Seconds of one of so many calls in a row, between two events of CUDA's stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000 / repeats


def by_clock(call: Call, repeats: int) -> float:
    """Seconds of one of so many calls in a row that return when they are done."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def seconds_on(device: str) -> Seconds:
    """What measures calls of torch on a device."""
    return by_events if device == "cuda" else by_clock


def measure_for(first: Call, second: Call, limit_s: float, seconds: Seconds) -> Pairs:
    """Seconds of both, measured in turn for a while, at least five times, after a warm-up."""
    for call in (first, second):
        seconds(call, _WARM_UP)
    pair = [seconds(call, 1) for call in (first, second)]
    repeats = max(1, math.ceil(_SAMPLE_S / max(min(pair), 1e-6)))
    one, other = (partial(seconds, call, repeats) for call in (first, second))
    count = max(_LEAST, min(100, int(limit_s / (repeats * sum(pair)))))
    return list(in_turn(one, other, count))


def captured(call: Call) -> Call:
    """Replay what a call launches, as one CUDA graph: nothing is launched by the CPU any more."""
    torch.cuda.empty_cache()  # a graph has memory of its own
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()

    def replay() -> object:
        """What the call gave, computed again."""
        graph.replay()
        return kept

    return replay


def peak_memory(model: nn.Module, call: Call, device: str) -> int:
    """Most bytes held at once by the weights and by what a call makes; see `peak_bytes`."""
    if device != "cuda":
        return peak_bytes(model, call)
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return weights + torch.cuda.max_memory_allocated() - before

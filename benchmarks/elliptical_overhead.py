"""What does m cost? Elliptical over dot-product attention, in time and in memory.

DeiT-tiny at 224 x 224 in one process, eager and exported to every runtime; both models hold the
same random weights, so that neither finds them in a better place. Times are measured in turn (and
in alternating order); a ratio is the median over pairs, its spread the interval of the median at
95 %. Peak memory is the largest number of bytes that tensors, weights included, hold at once,
counted from every allocation that torch's profiler records: it is exact and the same in every run,
where the memory of the process would hide it behind that of torch.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import profile

import models
from benchmarks.support.pairs import measure_pairs, pair_rows, torch_threads
from benchmarks.support.rows import Row, figure
from export.onnx import to_onnx
from runtimes.onnx import open_session
from runtimes.openvino import compile_graph, missing
from runtimes.threads import available_cores

TARGETS = {"forward": 1.02, "forward and input gradient": 1.05}
_MEMORY_TARGET, _EXPORTED_TARGET = 1.02, 1.01
_LABELS = ("dot-product", "elliptical")
_PAIRS = {("forward", 1): 300, ("forward", 8): 60}
_PAIRS |= {("forward and input gradient", 1): 120, ("forward and input gradient", 8): 30}
_EXPORTED_PAIRS = {1: 300, 8: 60}
Call = Callable[[dict[str, np.ndarray]], object]


def run() -> Iterable[Row]:
    """Compare both models at batch 1 and 8, on one thread and on all cores."""
    pair = _models()
    graphs = [to_onnx(model, _images(2), {}) for model in pair]
    for threads in sorted({1, available_cores()}):
        with torch_threads(threads):
            for (work, batch_size), count in _PAIRS.items():
                first, second = (image_caller(model, work, _images(batch_size)) for model in pair)
                case = f"DeiT-tiny 224, eager, {work}, batch {batch_size}, {threads} thread(s)"
                pairs = measure_pairs(first, second, count)
                yield from pair_rows(case, _LABELS, pairs, target=TARGETS[work])
            yield from _exported(graphs, threads)
    for work, batch_size in _PAIRS:
        case = f"DeiT-tiny 224, eager, {work}, batch {batch_size}, peak memory"
        images = _images(batch_size)
        peaks = [peak_bytes(model, image_caller(model, work, images)) for model in pair]
        ratio = peaks[1] / peaks[0]
        yield figure(f"{case}, {' / '.join(_LABELS[::-1])}", ratio, "ratio", target=_MEMORY_TARGET)
        for label, peak in zip(_LABELS, peaks, strict=True):
            yield figure(f"{case}, {label}", peak / 2**20, "MiB")


def _exported(graphs: list[bytes], threads: int) -> Iterator[Row]:
    first, second = (graph_calls(graph, threads) for graph in graphs)
    for batch_size, count in _EXPORTED_PAIRS.items():
        feed = {"images": _images(batch_size).numpy()}
        for engine in first:
            case = f"DeiT-tiny 224, batch-{batch_size}, {threads} thread(s), {engine}"
            both = partial(first[engine], feed), partial(second[engine], feed)
            pairs = measure_pairs(*both, count)
            yield from pair_rows(case, _LABELS, pairs, target=_EXPORTED_TARGET)


def graph_calls(graph: bytes, threads: int) -> dict[str, Call]:
    """What runs a graph, by engine and precision."""
    session = open_session(graph, threads=threads)
    found: dict[str, Call] = {"onnx-cpu fp32": lambda feed: session.run(["logits"], feed)}
    if missing() is None:
        for precision in ("fp32", "bf16"):
            request = compile_graph(graph, precision, threads).create_infer_request()
            found[f"openvino {precision}"] = request.infer
    return found


def peak_bytes(model: nn.Module, call: Callable[[], object]) -> int:
    """Most bytes held at once by the model's weights and by the tensors that a call makes.

    Args:
        model: whose weights count.
        call: what is done with it, twice; what lives before the second is not counted.
    """
    call()
    with profile(profile_memory=True) as profiler:
        call()
    if profiler.profiler is None or profiler.profiler.kineto_results is None:
        raise RuntimeError("torch's profiler has recorded nothing")
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [
        event.nbytes()  # pyright: ignore[reportAttributeAccessIssue] # torch's stubs lack it
        for event in sorted(events, key=lambda event: event.start_ns())
    ]
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return weights + max(accumulate(sizes), default=0)


def _models() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    dot, elliptical = models.build("deit_tiny"), models.build("deit_tiny_elliptical")
    elliptical.load_state_dict(dot.state_dict(), assign=True)
    return dot.eval().requires_grad_(False), elliptical.eval().requires_grad_(False)


def _images(batch_size: int) -> Tensor:
    return torch.rand(batch_size, 3, 224, 224, generator=torch.Generator().manual_seed(0))


def image_caller(model: nn.Module, work: str, images: Tensor) -> Callable[[], Tensor]:
    """A call of a model on images (B, C, H, W): `work` is a key of `TARGETS`."""
    if work == "forward":
        return torch.inference_mode()(lambda: model(images))
    images = images.clone().requires_grad_()
    return lambda: torch.autograd.grad(model(images).logsumexp(1).sum(), images)[0]

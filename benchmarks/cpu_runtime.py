"""How fast is each runtime on this CPU, against ONNX Runtime as it comes?

DeiT-tiny at 224 x 224 with elliptical attention, on every engine that is installed and in every
precision that it has here, in one process; then against its dot-product counterpart in the same
runtime.
A ratio is the median over pairs of calls measured one right after the other; its spread is the
interval of the median at 95 %. `auto` is what the parity gate lets through and a start measures as
the fastest, so it appears under its engine's name again.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnxruntime
import torch

from benchmarks.support.agreement import agreement_rows
from benchmarks.support.ceiling import ceiling_rows
from benchmarks.support.deit_artifact import pictures, write_deit_tiny
from benchmarks.support.pairs import measure_pairs, pair_rows
from benchmarks.support.rows import Row
from export.benchmark import make_int8
from export.select import open_selected
from runtimes.artifact import Artifact
from runtimes.base import Mode, Runtime
from runtimes.manifest import ONNX
from runtimes.registry import RUNTIMES, installed, open_runtime
from runtimes.threads import available_cores

PAIRS: Mapping[int, int] = {1: 60, 8: 12}
"""How many pairs to measure, by batch size."""
_RUNTIMES = ("onnx-cpu", "openvino", "torchscript")
_MODES: tuple[Mode, ...] = ("exact", "fast")
_TARGETS = {
    ("auto exact", 1): 1.2,
    ("auto exact", 8): 1.2,
    ("auto fast", 1): 3.0,
    ("auto fast", 8): 4.0,
    ("onnx-cpu int8", 1): 1.8,
    ("onnx-cpu int8", 8): 1.8,
}
_ELLIPTICAL_TARGET = 1.01
_PAUSE = 0.05
"""Threads of the stock runtime spin on after a call, on cores that the next one needs."""


def run() -> Iterable[Row]:
    """Compare every runtime with the stock one, with the machine, and with the counterpart."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(available_cores())
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield from _rows(Path(folder), PAIRS)
        yield from agreement_rows()
    finally:
        torch.set_num_threads(threads_before)


def _rows(folder: Path, counts: Mapping[int, int]) -> Iterator[Row]:
    cache = folder / "cache"
    elliptical = write_deit_tiny(folder / "elliptical")
    dot = write_deit_tiny(folder / "dot", architecture="deit_tiny")
    chosen = {f"auto {mode}": open_selected(elliptical, mode=mode, cache=cache) for mode in _MODES}
    for artifact in (elliptical, dot):
        make_int8(artifact, cache)
    yield from _speed_rows(elliptical, chosen | _all(elliptical, cache), counts)
    # Where auto takes a GPU, the ceiling of the processor says nothing.
    named = {f"{k} ({_name(v)})": v for k, v in chosen.items() if v.name in _RUNTIMES}
    yield from ceiling_rows(elliptical, named, counts)
    yield from _torch_rows(_all(elliptical, cache), _all(dot, cache), counts)


def _all(artifact: Artifact, cache: Path) -> dict[str, Runtime]:
    """Every engine in every precision that it has here."""
    runtimes = [
        open_runtime(artifact, name=name, precision=precision, cache=cache)
        for name in installed()
        if name in _RUNTIMES
        for precision in RUNTIMES[name].precisions(artifact.manifest, "fast")
    ]
    return {_name(runtime): runtime for runtime in runtimes}


def _name(runtime: Runtime) -> str:
    return f"{runtime.name} {runtime.precision}"


def _speed_rows(
    artifact: Artifact, runtimes: Mapping[str, Runtime], counts: Mapping[int, int]
) -> Iterator[Row]:
    session = onnxruntime.InferenceSession(artifact.read(ONNX), providers=["CPUExecutionProvider"])
    for label, runtime in runtimes.items():
        shown = label if label == _name(runtime) else f"{label} ({_name(runtime)})"
        for batch_size, count in counts.items():
            images = pictures(batch_size)
            pairs = measure_pairs(
                lambda images=images, runtime=runtime: runtime.predict(images),
                lambda images=images: session.run(["logits"], {"images": images}),
                count,
                pause=_PAUSE,
            )
            yield from pair_rows(
                _case(batch_size),
                (shown, "stock onnx-cpu fp32"),
                pairs,
                target=_TARGETS.get((label, batch_size)),
                better="higher",
            )


def _torch_rows(
    elliptical: Mapping[str, Runtime], dot: Mapping[str, Runtime], counts: Mapping[int, int]
) -> Iterator[Row]:
    for label, runtime in elliptical.items():
        counterpart = dot[label]
        for batch_size, count in counts.items():
            images = pictures(batch_size)
            pairs = measure_pairs(
                lambda images=images, counterpart=counterpart: counterpart.predict(images),
                lambda images=images, runtime=runtime: runtime.predict(images),
                count,
            )
            yield from pair_rows(
                f"{_case(batch_size)}, {label}",
                ("dot-product", "elliptical"),
                pairs,
                target=_ELLIPTICAL_TARGET,
            )


def _case(batch_size: int) -> str:
    return f"DeiT-tiny 224, batch-{batch_size}, {available_cores()} thread(s)"

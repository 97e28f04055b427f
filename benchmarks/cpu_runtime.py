"""How fast is each runtime on this CPU, against ONNX Runtime as it comes?

DeiT-tiny at 224 x 224 with elliptical attention, on every engine that is installed and in every
precision that it has here, in one process; then against one large matrix product by torch in the
same arithmetic, the ceiling. `elliptical_overhead` compares it with dot-product attention.
A ratio is the median over pairs of calls measured one right after the other; its spread is the
interval of the median at 95 %. `auto` is what the parity gate lets through and a start measures as
the fastest, so it appears under its engine's name again. At last, where `ASSAY_DATA` has the test
sets: do other engines and precisions answer as the shipped models do?
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.support.deit_artifact import pictures, write_deit_tiny
from benchmarks.support.pairs import measure_pairs, pair_rows, torch_threads
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT
from core.stats import wilson
from data.sources import load_inputs, open_images
from export.benchmark import make_int8
from export.select import open_selected
from runtimes.artifact import Artifact, find_artifacts
from runtimes.base import Mode, Runtime
from runtimes.manifest import ONNX
from runtimes.quantized import has_graph
from runtimes.registry import RUNTIMES, installed, open_runtime
from runtimes.threads import available_cores
from runtimes.torch_model import load_torch_model

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
_CEILING_TARGET, _AGREEMENT_TARGET = 0.6, 0.999
_PAUSE = 0.05
"""Threads of the stock runtime spin on after a call, on cores that the next one needs."""
_SIDE = 2048
_WORK = 2 * _SIDE**3
_BATCH = 64


def run() -> Iterable[Row]:
    """Compare every runtime with the stock one and with the machine."""
    with torch_threads(available_cores()):
        with tempfile.TemporaryDirectory() as folder:
            yield from _rows(Path(folder))
        for artifact in find_artifacts([ROOT / "artifacts"]):
            images = artifact.manifest.task == "image-classification"
            if images and os.environ.get("ASSAY_DATA"):
                yield from _agreement_rows(artifact)


def _rows(folder: Path) -> Iterator[Row]:
    cache = folder / "cache"
    artifact = write_deit_tiny(folder / "artifact")
    chosen = {f"auto {mode}": open_selected(artifact, mode=mode, cache=cache) for mode in _MODES}
    make_int8(artifact, cache)
    yield from _stock_rows(artifact, chosen | _all(artifact, cache))
    # Where auto takes a GPU, the ceiling of the processor says nothing.
    named = {f"{k} ({_name(v)})": v for k, v in chosen.items() if v.name in _RUNTIMES}
    yield from _ceiling_rows(artifact, named)


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


def _stock_rows(artifact: Artifact, runtimes: Mapping[str, Runtime]) -> Iterator[Row]:
    session = onnxruntime.InferenceSession(artifact.read(ONNX), providers=["CPUExecutionProvider"])
    for label, runtime in runtimes.items():
        shown = label if label == _name(runtime) else f"{label} ({_name(runtime)})"
        for batch_size, count in PAIRS.items():
            images = pictures(batch_size)
            pairs = measure_pairs(
                partial(runtime.predict, images),
                partial(session.run, ["logits"], {"images": images}),
                count,
                pause=_PAUSE,
            )
            yield from pair_rows(
                f"DeiT-tiny 224, batch-{batch_size}, {available_cores()} thread(s)",
                (shown, "stock onnx-cpu fp32"),
                pairs,
                target=_TARGETS.get((label, batch_size)),
                better="higher",
            )


def _ceiling_rows(artifact: Artifact, runtimes: Mapping[str, Runtime]) -> Iterator[Row]:
    """The share that each runtime reaches, and the ceiling it is a share of."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        load_torch_model(artifact)(torch.zeros(1, *artifact.manifest.input.shape[1:]))
    for label, runtime in runtimes.items():
        kind = "int8" if runtime.precision.startswith("int8") else runtime.precision
        for batch_size, count in PAIRS.items():
            call = partial(runtime.predict, pictures(batch_size))
            pairs = measure_pairs(call, _product(kind), max(1, count // 4))  # it takes long
            work = batch_size * counter.get_total_flops() / _WORK
            shares = [work * ceiling / seconds for seconds, ceiling in pairs]
            rates = [_WORK / ceiling / 1e12 for _, ceiling in pairs]
            case = f"DeiT-tiny 224, batch-{batch_size}, {label}"
            for about, values, unit, target in (
                ("share of the ceiling", shares, "ratio", _CEILING_TARGET),
                (f"ceiling of {kind}", rates, "TFLOP/s", None),
            ):
                yield figure(f"{case}, {about}", values, unit, target=target, better="higher")


def _product(kind: str) -> Callable[[], object]:
    left, right = torch.rand(2, _SIDE, _SIDE)
    if kind == "int8":
        left, right = ((127 * x).to(torch.int8) for x in (left, right))
        return torch.inference_mode()(lambda: torch._int_mm(left, right))  # pyright: ignore[reportPrivateImportUsage]  # there is no other
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[kind]
    left, right = left.to(dtype), right.to(dtype)
    return torch.inference_mode()(lambda: left @ right)


def _agreement_rows(artifact: Artifact) -> Iterator[Row]:
    source = artifact.manifest.training["recipe"]["data"]["source"]
    images = open_images(source, split="test", label_names=artifact.labels)
    inputs = load_inputs(images, artifact.image_spec)
    expected = _classes(open_runtime(artifact), inputs)
    with tempfile.TemporaryDirectory() as cache:
        fast = open_selected(artifact, mode="fast", cache=Path(cache))
        for runtime in (fast, *_others(artifact, Path(cache))):
            same = int((_classes(runtime, inputs) == expected).sum())
            label = _name(runtime)
            precision = artifact.manifest.precision
            case = f"{artifact.name}, {source} test, top-1 as onnx-cpu {precision}"
            yield figure(
                f"{case}, {f'auto fast ({label})' if runtime is fast else label}",
                same / len(inputs),
                "share",
                better="higher",
                target=_AGREEMENT_TARGET if runtime is fast else None,
                samples=len(inputs),
                spread=wilson(same, len(inputs)),
            )


def _others(artifact: Artifact, cache: Path) -> Iterator[Runtime]:
    """Every engine and precision but the reference, those that the gate refuses included."""
    for engine in installed():
        for precision in RUNTIMES[engine].precisions(artifact.manifest, "fast"):
            reference = (engine, precision) == ("onnx-cpu", artifact.manifest.precision)
            if not reference and has_graph(artifact, precision, cache):
                yield RUNTIMES[engine].open(artifact, precision, available_cores(), cache)


def _classes(runtime: Runtime, inputs: np.ndarray) -> np.ndarray:
    parts = np.array_split(inputs, -(-len(inputs) // _BATCH))
    return np.concatenate([runtime.predict(part).argmax(1) for part in parts])

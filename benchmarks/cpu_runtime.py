"""How fast is each runtime on this CPU, against ONNX Runtime as it comes?

DeiT-tiny at 224 x 224 with elliptical attention, on every engine that is installed and in every
precision that it has here, in one process. A ratio is the median over pairs of calls measured one
right after the other; its spread is the interval of the median at 95 %. `auto` is what the parity
gate lets through and a start measures as the fastest, so it appears under its engine's name again.
The share of the ceiling is the model's rate of arithmetic over that of one large matrix product in
the same precision, measured in turn with it.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.agreement import agreement_rows
from benchmarks.deit_artifact import pictures, write_deit_tiny
from benchmarks.pairs import measure_pairs, median_interval, pair_rows
from benchmarks.rows import Row
from export.artifact import Artifact
from export.manifest import ONNX
from export.runtime import Mode, Runtime, RuntimeUnavailable, open_runtime
from export.runtimes.engines import ENGINES, installed
from export.threads import available_cores
from export.twin import load_twin

NAME = "cpu_runtime"
_PAIRS = {1: 150, 8: 30}
_CEILING_PAIRS = {1: 60, 8: 20}
_TARGETS = {("fast", 1): 3.0, ("fast", 8): 4.0, ("exact", 1): 1.2, ("exact", 8): 1.2}
_CEILING_TARGET = 0.6
_SIDE = 2048
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def run() -> Iterable[Row]:
    """Compare every runtime with the stock one, then with the machine, then with the model."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(available_cores())
    try:
        with tempfile.TemporaryDirectory() as folder:
            artifact = write_deit_tiny(Path(folder) / "artifact")
            yield from _speed_rows(artifact)
            yield from _ceiling_rows(artifact)
        yield from agreement_rows(NAME)
    finally:
        torch.set_num_threads(threads_before)


def _speed_rows(artifact: Artifact) -> Iterator[Row]:
    session = onnxruntime.InferenceSession(artifact.read(ONNX), providers=["CPUExecutionProvider"])
    for label, runtime, mode in _runtimes(artifact):
        for batch_size, count in _PAIRS.items():
            images = pictures(batch_size)
            pairs = measure_pairs(
                lambda images=images, runtime=runtime: runtime.predict(images),
                lambda images=images: session.run(["logits"], {"images": images}),
                count,
            )
            yield from pair_rows(
                NAME,
                f"DeiT-tiny 224, batch-{batch_size}, {available_cores()} thread(s)",
                (label, "stock onnx-cpu fp32"),
                pairs,
                target=_TARGETS[mode, batch_size] if mode else None,
                better="higher",
            )


def _runtimes(artifact: Artifact) -> Iterator[tuple[str, Runtime, Mode | None]]:
    """What `auto` takes in both modes, then every engine in every precision that it has here."""
    for mode in ("exact", "fast"):
        runtime = open_runtime(artifact, name="auto", precision=mode)
        yield f"auto {mode} ({runtime.name} {runtime.precision})", runtime, mode
    for name in installed():
        for precision in ENGINES[name].precisions(artifact.manifest, "fast"):
            try:
                runtime = ENGINES[name].open(artifact, precision, available_cores(), None)
            except RuntimeUnavailable:
                continue
            yield f"{name} {precision}", runtime, None


def _ceiling_rows(artifact: Artifact) -> Iterator[Row]:
    flops = _flops(artifact)
    for mode in ("exact", "fast"):
        runtime = open_runtime(artifact, name="auto", precision=mode)
        if runtime.precision not in _TYPES:
            continue
        product = _product(_TYPES[runtime.precision])
        for batch_size, count in _CEILING_PAIRS.items():
            images = pictures(batch_size)
            pairs = measure_pairs(
                lambda images=images, runtime=runtime: runtime.predict(images), product, count
            )
            work = batch_size * flops / (2 * _SIDE**3)
            shares = [work * ceiling / seconds for seconds, ceiling in pairs]
            rates = [2 * _SIDE**3 / ceiling / 1e12 for _, ceiling in pairs]
            case = f"DeiT-tiny 224, batch-{batch_size}, auto {mode} ({runtime.name} "
            case += f"{runtime.precision})"
            yield _median_row(f"{case}, share of the ceiling", shares, "ratio", _CEILING_TARGET)
            yield _median_row(f"{case}, ceiling", rates, "TFLOP/s", None)


def _median_row(case: str, values: list[float], unit: str, target: float | None) -> Row:
    return Row(
        name=NAME,
        case=case,
        measured=round(float(np.median(values)), 4),
        unit=unit,
        better="higher",
        target=target,
        samples=len(values),
        spread=median_interval(values),
    )


def _product(dtype: torch.dtype) -> Callable[[], object]:
    left, right = torch.rand(2, _SIDE, _SIDE).to(dtype)
    return torch.inference_mode()(lambda: left @ right)


def _flops(artifact: Artifact) -> int:
    """Operations of one image, a multiplication and an addition counted as two."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        load_twin(artifact)(torch.zeros(1, *artifact.manifest.input.shape[1:]))
    return counter.get_total_flops()

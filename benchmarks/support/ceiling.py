"""How much of the machine's rate of arithmetic does a runtime reach?

The ceiling is one large matrix product by torch in the same arithmetic, measured in turn with the
runtime.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.support.deit_artifact import pictures
from benchmarks.support.pairs import measure_pairs, median_interval
from benchmarks.support.rows import Row, figure
from runtimes.artifact import Artifact
from runtimes.base import Runtime
from runtimes.torch_model import load_torch_model

_TARGET = 0.6
_SIDE = 2048
_WORK = 2 * _SIDE**3


def ceiling_rows(
    artifact: Artifact, runtimes: Mapping[str, Runtime], counts: Mapping[int, int]
) -> Iterator[Row]:
    """The share that each runtime reaches, and the ceiling it is a share of, at every batch size.

    Args:
        artifact: what the runtimes have opened.
        runtimes: by what they are called in the cases.
        counts: how many pairs to measure, by batch size; the product takes long, so a quarter of
            them.
    """
    flops = count_flops(artifact)
    for label, runtime in runtimes.items():
        kind = "int8" if runtime.precision.startswith("int8") else runtime.precision
        product = _product(kind)
        for batch_size, count in counts.items():
            images = pictures(batch_size)
            pairs = measure_pairs(
                lambda images=images, runtime=runtime: runtime.predict(images),
                product,
                max(1, count // 4),
            )
            work = batch_size * flops / _WORK
            shares = [work * ceiling / seconds for seconds, ceiling in pairs]
            rates = [_WORK / ceiling / 1e12 for _, ceiling in pairs]
            case = f"DeiT-tiny 224, batch-{batch_size}, {label}"
            yield figure(
                f"{case}, share of the ceiling", shares, "ratio",
                target=_TARGET, better="higher", spread=median_interval(shares),
            )  # fmt: skip
            spread = median_interval(rates)
            yield figure(
                f"{case}, ceiling of {kind}", rates, "TFLOP/s", better="higher", spread=spread
            )


def count_flops(artifact: Artifact) -> int:
    """Operations of one image, a multiplication and an addition counted as two."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        load_torch_model(artifact)(torch.zeros(1, *artifact.manifest.input.shape[1:]))
    return counter.get_total_flops()


def _product(kind: str) -> Callable[[], object]:
    left, right = torch.rand(2, _SIDE, _SIDE)
    if kind == "int8":
        left, right = ((127 * x).to(torch.int8) for x in (left, right))
        return torch.inference_mode()(lambda: torch._int_mm(left, right))  # pyright: ignore[reportPrivateImportUsage]  # there is no other
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[kind]
    left, right = left.to(dtype), right.to(dtype)
    return torch.inference_mode()(lambda: left @ right)

"""Answers of an artifact on the device, in every precision, beside the CPU's in fp32."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.device.setting import Cell, Setting
from benchmarks.device.timing import PRECISIONS, rounding
from benchmarks.support.rows import Row, figure
from runtimes.artifact import open_artifact
from runtimes.torch_model import load_torch_model

_ARTIFACT = Path(__file__).parents[2] / "artifacts" / "fashion-elliptical"
_INPUTS, _CHUNK = 1000, 250


def cells(setting: Setting) -> Iterator[Cell]:
    """Differences of logits and classes by precision."""
    for precision in PRECISIONS:
        case = f"{_ARTIFACT.name}, {_INPUTS} random inputs, {precision}"
        yield case, partial(_rows, case, setting, precision)


def _rows(case: str, setting: Setting, precision: str) -> Iterator[Row]:
    with torch.inference_mode(False):
        artifact = open_artifact(_ARTIFACT)
        model = load_torch_model(artifact)
    shape = (_INPUTS, *artifact.manifest.input.shape[1:])
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    exact = torch.cat([model(part) for part in images.split(_CHUNK)])
    with rounding(precision) as dtype:
        model = model.to(setting.device, dtype)
        parts = [model(part.to(setting.device, dtype)) for part in images.split(_CHUNK)]
    found = torch.cat(parts).float().cpu()
    largest = 1e6 * (found - exact).abs().max().item()
    flips = int((found.argmax(1) != exact.argmax(1)).sum())
    yield figure(f"{case}, largest difference of logits from the CPU's", largest, "millionths")
    yield figure(f"{case}, other classes than the CPU's", flips, "inputs", samples=_INPUTS)

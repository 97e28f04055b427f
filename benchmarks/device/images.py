"""DeiT with both attentions, which share their random weights."""

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

import models
from benchmarks.device.setting import LABELS, Cell, Setting, rate_rows
from benchmarks.device.timing import (
    Call,
    captured,
    measure_for,
    peak_memory,
    rounding,
    seconds_on,
)
from benchmarks.support.rows import Row, figure
from export.torch_files import to_torchscript
from models.layers.block import Block
from models.layers.images import ImageModel
from runtimes.torchscript import load_torchscript

Form = Callable[[nn.Module, Tensor], nn.Module]


def _compiled(model: nn.Module, _: Tensor) -> nn.Module:
    """A model whose blocks are compiled: all but the first are one program."""
    for part in model.modules():
        if isinstance(part, Block):
            part.compile(fullgraph=True, dynamic=False)
    return model


def _scripted(model: nn.Module, images: Tensor) -> nn.Module:
    with torch.inference_mode(False):
        content = to_torchscript(model, images[:2].clone())
    return load_torchscript(content, device=images.device.type)


_FORMS: dict[str, Form] = {
    "eager": lambda model, _: model,
    "compiled": _compiled,
    "torchscript": _scripted,
}


def cells(form: str, setting: Setting) -> Iterator[Cell]:
    """Images per second and peak memory: "eager", "compiled" or "torchscript"."""
    for cell in setting.cells():
        size, batch, precision = cell
        case = f"DeiT-{size} {setting.img_size}, {form}, {precision}, batch {batch}"
        yield case, partial(_rows, case, form, setting, *cell)


def _rows(
    case: str, form: str, setting: Setting, size: str, batch: int, precision: str
) -> Iterator[Row]:
    with rounding(precision) as dtype:
        images = images_on(setting, batch).to(dtype)
        calls: list[Call] = []
        peaks: list[int] = []
        for model in pair_for(setting, size):
            model = copy.deepcopy(model).to(setting.device, dtype)
            calls.append(partial(_FORMS[form](model, images), images))
            calls[-1]()
            peaks.append(peak_memory(model, calls[-1], setting.device))
        yield from _rates(case, calls, batch, setting)
        yield figure(f"{case}, peak memory, elliptical / dot-product", peaks[1] / peaks[0], "ratio")
        for label, peak in zip(LABELS, peaks, strict=True):
            yield figure(f"{case}, peak memory, {label}", peak / 2**20, "MiB")
        if setting.device == "cuda" and form != "torchscript":
            yield from _rates(f"{case}, CUDA graph", map(captured, calls), batch, setting)


def _rates(case: str, calls: Iterable[Call], batch: int, setting: Setting) -> Iterator[Row]:
    first, second = calls
    pairs = measure_for(first, second, setting.cell_s, seconds_on(setting.device))
    yield from rate_rows(case, pairs, batch, "images/s")


@cache
def _built(size: str, img_size: int, **changes: Any) -> tuple[ImageModel, ImageModel]:
    torch.manual_seed(0)
    with torch.inference_mode(False):
        dot: Any = models.build(f"deit_{size}", img_size=img_size, **changes)
        elliptical: Any = models.build(f"deit_{size}_elliptical", img_size=img_size, **changes)
    elliptical.load_state_dict(dot.state_dict(), assign=True)
    return dot.eval().requires_grad_(False), elliptical.eval().requires_grad_(False)


def pair_for(setting: Setting, size: str) -> tuple[ImageModel, ImageModel]:
    """DeiT with both attentions and the same weights, on the CPU."""
    return _built(size, setting.img_size, **setting.changes)


def images_on(setting: Setting, batch: int) -> Tensor:
    """Random images (batch, 3, H, W) on the device."""
    generator = torch.Generator().manual_seed(batch)
    images = torch.rand(batch, 3, setting.img_size, setting.img_size, generator=generator)
    return images.to(setting.device)

"""A transformer over TransJect, on sequences of random tokens at batch 1."""

import copy
import itertools
from collections.abc import Iterator
from functools import cache, partial

import torch
from torch import nn

import models
from benchmarks.device.setting import Cell, Setting
from benchmarks.device.timing import Call, captured, measure_for, rounding, seconds_on
from benchmarks.support.pairs import pair_rows
from benchmarks.support.rows import Row
from benchmarks.transject_speedup import Reference, transformer, transject, with_attention

_PAPER = {1024: 5.0, 2048: 9.6, 4096: 26.3}
"""By tokens: times a transformer is slower than TransJect, in its paper."""


def cells(form: str, setting: Setting) -> Iterator[Cell]:
    """Times and ratios by length and precision: "eager" or "compiled"."""
    precisions = [each for each in ("fp32", "bf16", "tf32") if each in setting.precisions]
    for length, precision in itertools.product(setting.lengths, precisions):
        case = f"{length} tokens, batch 1, {form}, {precision}"
        yield case, partial(_rows, case, form, setting, length, precision)


def _rows(case: str, form: str, setting: Setting, length: int, precision: str) -> Iterator[Row]:
    with rounding(precision) as dtype:
        tokens = torch.randint(0, 256, (1, length)).to(setting.device)
        both = [copy.deepcopy(model).to(setting.device) for model in _models(length, dtype)]
        ours, fused = both[0], both[1].to(dtype)
        calls: dict[str, Call] = {}
        for name, model in (
            ("TransJect E=4", ours),
            ("materialised transformer", with_attention(fused, Reference)),
            ("fused transformer", fused),
        ):
            if form == "compiled":
                model.compile(fullgraph=True, dynamic=False)
            calls[name] = partial(model, tokens)
        yield from _ratios(case, length, calls, setting)
        if setting.device == "cuda":
            graphs = {name: captured(call) for name, call in calls.items()}
            yield from _ratios(f"{case}, CUDA graph", length, graphs, setting)


def _ratios(case: str, length: int, calls: dict[str, Call], setting: Setting) -> Iterator[Row]:
    (label, ours), *others = calls.items()
    for target, (name, theirs) in zip((_PAPER.get(length), 1.0), others, strict=True):
        pairs = measure_for(ours, theirs, setting.cell_s, seconds_on(setting.device))
        yield from pair_rows(case, (label, name), pairs, target=target, better="higher")


@cache
def _models(length: int, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """A folded TransJect with matrices of this type, and a transformer, on the CPU."""
    with torch.inference_mode(False):
        ours = models.fold(transject("transject", length), dtype=dtype)
        return ours, transformer(length).requires_grad_(False)

"""Which share of a block's time the metric m and the scaling of q take."""

import copy
from collections.abc import Iterator
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.device.images import pair_for
from benchmarks.device.setting import Cell, Setting
from benchmarks.device.timing import Call, rounding, synchronize
from benchmarks.support.pairs import in_turn
from benchmarks.support.rows import Row, figure

_CALLS, _PROFILES = 20, 5
Spent = dict[str, tuple[int, float]]
"""Calls and microseconds, by operator or kernel."""


def cells(form: str, setting: Setting) -> Iterator[Cell]:
    """Shares in one block: "eager" by operator, "compiled" by kernel."""
    batch, precision = setting.batches[0], setting.precisions[0]
    for size in setting.sizes:
        case = f"DeiT-{size} {setting.img_size}, one block, {form}, {precision}, batch {batch}"
        yield case, partial(_rows, case, form, setting, size)


def _rows(case: str, form: str, setting: Setting, size: str) -> Iterator[Row]:
    """Time of what an elliptical block does beside the other's work, as a share of all."""
    calls: list[Call] = []
    with rounding(setting.precisions[0]) as dtype:
        for model in pair_for(setting, size):
            block = copy.deepcopy(model.get_submodule("blocks.1")).to(setting.device, dtype)
            width = len(block.get_parameter("norm1.weight"))
            x = torch.randn(setting.batches[0], 1 + (setting.img_size // 16) ** 2, width)
            x = x.to(setting.device, dtype)
            v = torch.randn_like(x).unflatten(-1, (-1, 64)).transpose(1, 2)  # (B, H, N, D)
            if form == "compiled":
                block.compile(fullgraph=True, dynamic=False)
            calls.append(partial(block, x, v))
            calls[-1]()
        dot, own = (partial(_spent, call, form, setting.device) for call in calls)
        pairs = list(in_turn(dot, own, _PROFILES))
    more = [_more(*pair) for pair in pairs]
    for name in sorted({name for shares in more for name in shares}):
        shares = [each.get(name, 0.0) for each in more]
        yield figure(f"{case}, m and the scaling of q, {name}", shares, "% of the time")


def _more(dot: Spent, own: Spent) -> dict[str, float]:
    """Percent of the time that goes to what is called more often than in the other block.

    Raises:
        RuntimeError: the profiler may not watch the device.
    """
    whole = sum(us for _, us in own.values()) / 100
    if not whole:
        raise RuntimeError("the profiler saw nothing on the device")
    found = {"as a difference": 100 - sum(us for _, us in dot.values()) / whole}
    for name, (count, us) in own.items():
        other_count, other_us = dot.get(name, (0, 0.0))
        if count > other_count:
            found[name] = (us - other_us) / whole
    return found


def _spent(call: Call, form: str, device: str) -> Spent:
    """What the device did in several calls: by operator; by kernel where torch compiled them."""
    kinds = {"cpu": [ProfilerActivity.CPU], "cuda": [ProfilerActivity.CPU, ProfilerActivity.CUDA]}
    with profile(activities=kinds[device], acc_events=True) as profiler:
        for _ in range(_CALLS):
            call()
        synchronize(device)
    found: Spent = {}
    of_kernels = device == "cuda" and form == "compiled"
    for event in profiler.events() or ():
        if event.is_user_annotation or of_kernels != (event.device_type.name == "CUDA"):
            continue
        us = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        if us > 0:
            count, before = found.get(event.name, (0, 0.0))
            found[event.name] = (count + 1, before + us)
    return found

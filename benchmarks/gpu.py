"""What does a GPU make of the models? Both attentions, both architectures, training and answers.

- "eager", "compiled", "torchscript", "onnx": images per second and peak memory of DeiT at 224 x 224
  with dot-product and with elliptical attention, which share their random weights. In "compiled"
  torch compiles each block on its own; a "CUDA graph" replays everything without the CPU. ONNX
  Runtime is given its tensors on the device and is timed until it returns.
- "transject": a transformer over TransJect at batch 1, as in `transject_speedup`, whose paper
  reports 5.0, 9.6 and 26.3 at 1k, 2k and 4k tokens.
- "profile": which share of a block's time the metric m and the scaling of q take.
- "training": steps of CIFAR-10's full-size DeiT in bf16 (forward, backward, AdamW; random images).
- "logits": answers of an artifact on the device, in every precision, beside the CPU's in fp32.

Times are those of CUDA's events, several calls between two of them, in turn and in alternating
order; a ratio is the median over pairs. "transject" and "profile" come "-compiled", too. On a
machine without CUDA everything runs on the CPU. What cannot be measured, or not in the time that is
left, gives a row that says why.
"""

import dataclasses
import gc
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

import torch

from benchmarks.device import answers, exported, images, sequences, shares, training
from benchmarks.device.setting import FORMS, Cell, Setting
from benchmarks.device.timing import device_name
from benchmarks.support.rows import Row, skipped

PARTS: dict[str, tuple[float, Callable[[Setting], Iterable[Cell]]]] = {
    "eager": (0.22, partial(images.cells, "eager")),
    "transject": (0.16, partial(sequences.cells, "eager")),
    "profile": (0.04, partial(shares.cells, "eager")),
    "training": (0.04, training.cells),
    "logits": (0.04, answers.cells),
    "onnx": (0.15, exported.cells),
    "torchscript": (0.06, partial(images.cells, "torchscript")),
    "compiled": (0.17, partial(images.cells, "compiled")),
    "profile-compiled": (0.04, partial(shares.cells, "compiled")),
    "transject-compiled": (0.08, partial(sequences.cells, "compiled")),
}
"""By name: its share of the time, and its figures; what is left over goes to the next."""
Known = TypeVar("Known")


def run(
    seconds: float = 150.0, form: str = "full", parts: tuple[str, ...] = ("all",)
) -> Iterator[Row]:
    """Measure, what matters most first, until the time is over.

    Args:
        seconds: for everything; no figure is begun after them.
        form: "full", or "tiny" models and inputs.
        parts: of the list above, in this order.
    """
    begun = time.perf_counter()
    setting = _known("form", form, FORMS)()
    names = tuple(PARTS) if tuple(parts) == ("all",) else parts
    chosen = {name: _known("parts", name, PARTS) for name in names}
    where = device_name(setting.device)
    whole, passed = sum(share for share, _ in chosen.values()), 0.0
    for name, (share, cells) in chosen.items():
        passed += share / whole
        ends = begun + passed * seconds, begun + seconds
        for row in _measured(name, cells(setting), *ends):
            yield dataclasses.replace(row, machine=where)


def _known(argument: str, name: str, known: dict[str, Known]) -> Known:
    if name not in known:
        raise ValueError(f"{argument} must be of {', '.join(known)}, got {name!r}")
    return known[name]


def _measured(name: str, cells: Iterable[Cell], end: float, last: float) -> Iterator[Row]:
    """The rows of all cells that can be begun before the end; the first may begin until the last.

    So a part that takes longer than its share leaves none of the others out.
    """
    late: list[str] = []
    for number, (case, measure) in enumerate(cells):
        if time.perf_counter() > (end if number else last):
            late.append(case)
            continue
        try:
            if "compiled" in name:
                torch.compiler.reset()
            with torch.inference_mode():
                yield from measure()
        except Exception as error:  # one figure less; whatever it was, the others do not need it
            yield skipped(case, f"{type(error).__name__}: {error}"[:300])
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    if late:
        yield skipped(f"{name}, {len(late)} figures from {late[0]!r} on", "the time was over")

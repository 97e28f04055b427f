"""What do the robust attentions cost, beside elliptical? As EA's table 12 compares them.

DeiT-tiny at 224 x 224 with each attention, and RVT-tiny, each in turn with elliptical DeiT-tiny (in
alternating order), eager, batch 8, one thread: a forward pass, and a training step with AdamW. A
ratio is the median over pairs. Peak memory is counted as in `elliptical_overhead`, without the
optimizer's moments.

Source: Nielsen et al., "Elliptical Attention", NeurIPS 2024, table 12.
"""

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import models
from benchmarks.elliptical_overhead import peak_bytes
from benchmarks.support.pairs import measure_pairs, pair_rows, torch_threads
from benchmarks.support.rows import Row, figure

WORKS = ("forward", "training step")
MODELS = ("dot", "mom", "rkde", "spkde", "rvt_tiny")
_REFERENCE, _BATCH = "elliptical", 8


def run(pairs: int = 7, names: tuple[str, ...] = MODELS) -> Iterable[Row]:
    """Compare each with elliptical attention.

    Args:
        pairs: of measurements.
        names: attentions of DeiT-tiny, or a model of its own.
    """
    with torch_threads(1):
        for work in WORKS:
            for name in names:
                case, labels = f"224, {work}, batch {_BATCH}", (_REFERENCE, name)
                calls = [_caller(_model(label), work) for label in labels]
                seconds = measure_pairs(calls[0], calls[1], pairs)
                rates = [(1 / first, 1 / second) for first, second in seconds]
                yield from pair_rows(
                    case, labels, rates, target=None, better="higher", rate="iterations/s"
                )
            for name in (_REFERENCE, *names):
                model = _model(name)
                peak = peak_bytes(model, _caller(model, work)) / 2**20
                yield figure(f"224, {work}, batch {_BATCH}, peak memory, {name}", peak, "MiB")


def _model(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name in models.names():
        return models.build(name)
    return models.build("deit_tiny", attention=name)


def _caller(model: nn.Module, work: str) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(_BATCH, 3, 224, 224, generator=generator)
    if work == "forward":
        model.eval()
        return torch.inference_mode()(lambda: model(images))
    labels = torch.arange(_BATCH)
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4, fused=True)

    def step() -> None:
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step

"""Batches in the order of the steps, prepared ahead of the model where the recipe asks for it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from training.draws import Draws, source
from training.order import Order
from training.samples import Samples

Batch = tuple[np.ndarray, tuple[Tensor, ...], Tensor]
"""Indices (B,), what the model takes, and labels (B,) int64."""


class _Steps(Dataset[Batch]):
    """The batch of each step, a pure function of the step."""

    def __init__(self, samples: Samples, order: Order, part: slice, seed: int) -> None:
        self._samples = samples
        self._order = order
        self._part = part
        self._seed = seed

    def __getitem__(self, step: int) -> Batch:
        indices = self._order.indices(step)
        draws = Draws(source(self._seed, "decode", step), len(indices), self._part)
        own = indices[self._part]
        labels = torch.from_numpy(self._samples.labels[own])
        return own, self._samples.batch(own, draws), labels


def batches(
    samples: Samples,
    order: Order,
    steps: range,
    *,
    part: slice,
    seed: int,
    workers: int,
    pin: bool,
) -> Iterator[Batch]:
    """The batches of some steps.

    Args:
        samples: the training split.
        order: which samples belong to which step.
        steps: steps to do.
        part: this process's share of each batch.
        seed: of the run.
        workers: processes that prepare batches; 0 prepares each when it is asked for.
        pin: keep batches in memory from which a GPU copies faster.
    """
    loader = DataLoader(
        _Steps(samples, order, part, seed),
        batch_size=None,
        sampler=steps,
        num_workers=workers,
        pin_memory=pin,
        collate_fn=_as_it_is,
    )
    return iter(loader)


def _as_it_is(batch: Any) -> Any:
    return batch

"""The batch of each training step: a pure function of the seed and the step.

Batches may be prepared ahead of the model, in processes of their own.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from training.draws import Draws, source
from training.samples import Samples

Batch = tuple[np.ndarray, tuple[Tensor, ...], Tensor]
"""Indices (B,), what the model takes, and targets (B, ...) int64."""

_POOL = 50
"""Batches whose samples are sorted by length together."""


class Order:
    """Which samples each step sees; samples that fill no batch are left out of their epoch.

    Args:
        num_samples: size of the training split.
        batch_size: samples per step.
        seed: of the run.
        lengths: (num_samples,) tokens, to put similar lengths into one batch; None mixes all.
        repeats: times that a sample comes in one batch; an epoch then sees fewer of them
            (Hoffer et al., "Augment your batch", 2020).

    Raises:
        ValueError: fewer samples than one batch needs.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        seed: int,
        lengths: np.ndarray | None = None,
        repeats: int = 1,
    ) -> None:
        if batch_size > num_samples:
            raise ValueError(
                f"train.batch_size must be at most the {num_samples} training samples, "
                f"got {batch_size}"
            )
        self._num_samples, self._batch_size = num_samples, batch_size
        self._seed, self._lengths, self._repeats = seed, lengths, repeats
        self._cached = (-1, np.empty((0, batch_size), np.int64))

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the samples."""
        return self._num_samples // self._batch_size

    def indices(self, step: int) -> np.ndarray:
        """The samples of a step, counted from 0: (batch_size,) int64."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._cached[0] != epoch:
            self._cached = (epoch, self._epoch(epoch))
        return self._cached[1][place]

    def _epoch(self, epoch: int) -> np.ndarray:
        """The batches of an epoch, (steps_per_epoch, batch_size)."""
        random = source(self._seed, "order", epoch)
        order = random.permutation(self._num_samples)
        used = self.steps_per_epoch * self._batch_size
        if self._repeats > 1:
            repeated = order.repeat(self._repeats)[:used].reshape(-1, self._batch_size)
            return random.permuted(repeated, axis=1)
        if self._lengths is None:
            return order[:used].reshape(-1, self._batch_size)
        lengths, pool = self._lengths, _POOL * self._batch_size
        pools = (order[start : min(start + pool, used)] for start in range(0, used, pool))
        ordered = np.concatenate([own[np.argsort(lengths[own], kind="stable")] for own in pools])
        return random.permutation(ordered.reshape(-1, self._batch_size), axis=0)


class _Steps(Dataset[Batch]):
    def __init__(self, samples: Samples, order: Order, part: slice, seed: int) -> None:
        self._samples, self._order = samples, order
        self._part, self._seed = part, seed

    def __getitem__(self, step: int) -> Batch:
        indices = self._order.indices(step)
        own = indices[self._part]
        # Inputs and targets get the same draws, so that a mask is cut like its image.
        draws, same = (
            Draws(source(self._seed, "decode", step), len(indices), self._part) for _ in range(2)
        )
        return own, self._samples.batch(own, draws), self._samples.targets(own, same)


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
    """This process's part of the batches of some steps, pinned where a GPU shall copy them.

    Without `workers`, processes that prepare them, each is prepared when it is asked for.
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


def _as_it_is(batch: Any) -> Any:  # a function of its own: workers must find it
    return batch

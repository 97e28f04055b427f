"""Random numbers of a run: pure functions of the seed, their purpose and the place in the run.

Nothing is carried from step to step, so a run that is killed and resumed draws what it would have
drawn, and a batch draws the same numbers on one process as shared among several.
"""

import numpy as np
import torch
from torch import Tensor, nn

from models.attention.base import Attention

_PURPOSES = ("order", "augment", "decode", "attack", "model")


def source(seed: int, purpose: str, *place: int) -> np.random.Generator:
    """An own source of random numbers for one of `_PURPOSES` at a place, e.g. a step."""
    return np.random.default_rng((seed, _PURPOSES.index(purpose), *place))


def seed_model(seed: int, *place: int, model: nn.Module | None = None) -> None:
    """Seed what is drawn inside of a model at a place, e.g. a step.

    Random metrics draw from generators of their own, dropout and drop path from torch's global one.
    """
    random = source(seed, "model", *place)
    torch.manual_seed(int(random.integers(2**63)))
    for layer in model.modules() if model is not None else ():
        if isinstance(layer, Attention) and layer.generator is not None:
            layer.generator.manual_seed(int(random.integers(2**63)))


class Draws:
    """Draws for one batch: every process draws for the whole and keeps those of its own samples.

    Args:
        random: from `source`; the same on every process.
        batch_size: samples of the whole batch.
        part: the samples of this process.
        device: where the draws are needed.
    """

    def __init__(
        self,
        random: np.random.Generator,
        batch_size: int,
        part: slice = slice(None),
        device: torch.device | str = "cpu",
    ) -> None:
        self._random, self._batch_size = random, batch_size
        self._part, self._device = part, device

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1), (B, *shape) float32."""
        return self._own(self._random.random((self._batch_size, *shape), np.float32))

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, (B, *shape) float32."""
        return self._own(self._random.standard_normal((self._batch_size, *shape), np.float32))

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Integers in [low, high), (B, *shape) int64."""
        return self._own(self._random.integers(low, high, (self._batch_size, *shape)))

    def groups(self, count: int) -> list[Tensor]:
        """Put each sample into one of so many groups: the indices (n,) int64 of each group's own.

        They are sorted out before they are sent, so that no device is waited for.
        """
        drawn = self._random.integers(0, count, self._batch_size)[self._part]
        own = (np.flatnonzero(drawn == number) for number in range(count))
        return [torch.from_numpy(indices).to(self._device) for indices in own]

    def chance(self) -> float:
        """One number in [0, 1) for the whole batch."""
        return float(self._random.random())

    def beta(self, alpha: float) -> float:
        """One number of the distribution Beta(alpha, alpha) for the whole batch."""
        return float(self._random.beta(alpha, alpha))

    def _own(self, drawn: np.ndarray) -> Tensor:
        return torch.from_numpy(drawn[self._part]).to(self._device)

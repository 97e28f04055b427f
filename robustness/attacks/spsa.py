"""SPSA: descent along a gradient that is estimated from a handful of queries."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from robustness.attacks.base import Info, Linf, Search
from robustness.attacks.queries import Oracle, QueryAttack
from robustness.parsing import Count

_BETAS = (0.9, 0.999)  # Adam's, Kingma & Ba 2015
_ADAM_EPS = 1e-8
_RATE = 0.01  # step size of Adam
_DELTA = np.float32(0.01)  # how far probes are from the iterate, in every pixel
_BATCH = 256  # images asked for together, at most
_FLOOR = 4  # at least a quarter of the directions is asked about, however well the guess fits


class SPSA(QueryAttack, frozen=True):
    """Gradient steps whose gradient is estimated by queries of the served model.

    From a random point of the ball, Adam lowers the margin of the label along a gradient that is
    estimated at every iterate, which is then clipped to the ball and to [0, 1]. The mean of Adam
    serves as the next estimate's guess (see `Slopes`), which spares most of the queries. Images are
    attacked one after another; probes are not clipped.

    Source: Uesato et al. 2018, algorithm 1, margin loss. Signs are drawn for every image, pixel
    and channel; the kernel of torchattacks shares them over the batch, asks on both sides of all
    of them, and starts at the image.
    """

    info: ClassVar[Info] = Info(
        title="SPSA",
        paper="Uesato et al. 2018",
        references=("arXiv:1802.05666",),
        what="guesses the gradient from answers along random directions",
        access="scores",
        norms=("Linf",),
    )
    name: Literal["spsa"] = "spsa"
    norm: Linf = "Linf"
    steps: Count = Field(default=40, description="gradient steps")
    samples: Count = Field(default=128, ge=2, description="random directions of a step")

    def cost(self, num_classes: int) -> int:
        """The directions of each step and its iterate, and what the clean image takes."""
        return self.steps * (self.samples + 2) + 100

    def sizes(self) -> dict[str, tuple[str, int]]:
        """All directions of a step are in memory at once."""
        return super().sizes() | {"samples": ("directions", self.samples)}

    def perturb(
        self, oracle: Oracle, images: np.ndarray, labels: np.ndarray, eps: float, search: Search
    ) -> np.ndarray:
        """See `QueryAttack.perturb`; iterates that are misclassified, else the last ones."""
        found = images.copy()
        for index in oracle.right(images, labels, _BATCH) if search.leave else range(len(images)):
            random = np.random.default_rng(search.seeds[index])
            label = int(labels[index])
            slopes = Slopes(oracle, label, random, self.samples)
            low = np.maximum(images[index] - np.float32(eps), 0)
            high = np.minimum(images[index] + np.float32(eps), 1)
            start = images[index] + random.uniform(-eps, eps, low.shape)
            iterates = _Descent(start.astype(np.float32).clip(low, high), low, high)
            for _ in range(self.steps):
                if search.leave and oracle.misclassifies(iterates.point, label):
                    break
                iterates.step(slopes)
            found[index] = iterates.point
        return found


class Slopes:
    """Estimates the gradient of one label's margin, at one iterate after another.

    Plain SPSA asks on both sides of the iterate for each of n random directions v, with entries
    -1 and 1, and averages slope * v. Two things spare queries at equal precision:

    - One side is enough. The margins are centred by their mean, which removes what is even in v as
      well as the other side would while the margin is nearly linear as far as the probes reach.
    - A guess g is a control variate: the margins are regressed on the guess's own answers v @ g,
      the fitted multiple of g is kept, and only the residuals are averaged. A guess that explains a
      share R2 of the variance leaves 1 - R2 of it, so that (1 - R2) n directions are as precise as
      n were. R2 is taken from the iterate before. Where a model is rugged or noisy, or the guess is
      bad, R2 is near 0 and all n directions are asked about.

    Args:
        oracle: the model.
        label: whose margin it is.
        random: of the directions.
        samples: n, the number of directions of a plain estimate.

    Source: Spall 1992 and Uesato et al. 2018, algorithm 1; control variates as in Owen, "Monte
    Carlo theory, methods and examples", section 8.9.
    """

    def __init__(
        self, oracle: Oracle, label: int, random: np.random.Generator, samples: int
    ) -> None:
        self._oracle, self._label, self._random, self._samples = oracle, label, random, samples
        self._explained = 0.0  # R2

    def at(self, point: np.ndarray, guess: np.ndarray | None = None) -> np.ndarray:
        """The gradient at one image, (C, H, W) float64, estimated without bias to first order.

        Args:
            point: (C, H, W) float32.
            guess: of the gradient, at any scale.
        """
        directions = self._directions(point.size)
        answers = _centred(self._ask(point, directions))
        self._explained, known = 0.0, np.float64(0)
        if guess is not None:
            forecast = _centred(directions @ guess.ravel().astype(np.float32))
            power, variance = forecast @ forecast, answers @ answers
            if power > 0 and variance > 0:
                multiple = (answers @ forecast) / power
                answers = answers - multiple * forecast
                self._explained = float(1 - (answers @ answers) / variance)
                known = multiple / _DELTA * guess
        average = answers.astype(np.float32) @ directions / (_DELTA * (len(directions) - 1))
        return known + average.reshape(point.shape).astype(np.float64)

    def _directions(self, size: int) -> np.ndarray:
        least = max(self._samples // _FLOOR, 2)
        count = max(round(self._samples * (1 - self._explained)), least)
        count = min(count, self._samples)
        bits = np.frombuffer(self._random.bytes(-(-count * size // 8)), np.uint8)
        signs = np.unpackbits(bits, count=count * size).astype(np.float32)
        return (2 * signs - 1).reshape(count, size)

    def _ask(self, point: np.ndarray, directions: np.ndarray) -> np.ndarray:
        margins = []
        for start in range(0, len(directions), _BATCH):
            part = directions[start : start + _BATCH]
            probes = point + _DELTA * part.reshape(-1, *point.shape)
            margins.append(self._oracle.margins(probes, np.full(len(part), self._label)))
        return np.concatenate(margins).astype(np.float64)


def _centred(values: np.ndarray) -> np.ndarray:
    """Less their mean; a margin that is not finite says nothing, so it becomes 0."""
    finite = np.isfinite(values)
    values = np.where(finite, values, 0).astype(np.float64)
    return np.where(finite, values - values.sum() / max(finite.sum(), 1), 0)


class _Descent:
    """Adam within a box.

    Attributes:
        point: the iterate, (C, H, W) float32.
    """

    def __init__(self, start: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
        self.point = start
        self._low, self._high = low, high
        self._count = 0
        # float64: the squares of large slopes overflow float32.
        self._first, self._second = np.zeros(start.shape), np.zeros(start.shape)

    def step(self, slopes: Slopes) -> None:
        """Estimate the slope at the iterate and go down."""
        slope = slopes.at(self.point, self._first if self._count else None)
        self._count += 1
        self._first = _BETAS[0] * self._first + (1 - _BETAS[0]) * slope
        self._second = _BETAS[1] * self._second + (1 - _BETAS[1]) * slope**2
        mean = self._first / (1 - _BETAS[0] ** self._count)
        spread = np.sqrt(self._second / (1 - _BETAS[1] ** self._count))
        moved = self.point - _RATE * mean / (spread + _ADAM_EPS)
        self.point = moved.astype(np.float32).clip(self._low, self._high)

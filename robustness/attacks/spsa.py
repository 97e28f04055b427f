"""SPSA: descent along a gradient that is estimated by queries."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from robustness.attacks.base import BallAttack, Batch, Budget, Info, Search, Settings
from robustness.attacks.queries import Oracle, Predict, check_request
from robustness.attacks.slopes import Slopes
from robustness.parsing import Count
from robustness.progress import Meter

if TYPE_CHECKING:
    from robustness.target import Target

_BETAS = (0.9, 0.999)  # Adam's, Kingma & Ba 2015
_ADAM_EPS = 1e-8


class SPSA(BallAttack, frozen=True):
    """Gradient steps whose gradient is estimated by queries of the served model."""

    info: ClassVar[Info] = Info(
        title="SPSA",
        paper="Uesato et al. 2018",
        what="guesses the gradient from answers along random directions",
        access="scores",
        norms=("Linf",),
    )
    name: Literal["spsa"] = "spsa"
    norm: Literal["Linf"] = Field(default="Linf", description="norm of the radii")
    steps: Count = Field(default=40, description="gradient steps")
    samples: Count = Field(default=128, description="random directions of a step")

    def cost(self, num_classes: int) -> int:
        """The directions of each step and its iterate, and what the clean image takes."""
        del num_classes
        return self.steps * (self.samples + 2) + 100

    def sizes(self) -> dict[str, tuple[str, int]]:
        """All directions of a step are in memory at once."""
        return super().sizes() | {"samples": ("directions", self.samples)}

    def settings(self, budget: Budget) -> Settings:
        """See `Attack.settings`."""
        del budget
        return Settings(self.steps)

    def run(
        self,
        target: "Target",
        batch: Batch,
        budgets: Sequence[Budget],
        search: Search,
    ) -> dict[Budget, Batch]:
        """See `Attack.run`."""
        return {
            budget: Batch(
                inputs=spsa(
                    target.predict,
                    batch.images,
                    batch.labels,
                    eps=budget.value,
                    steps=self.steps,
                    samples=self.samples,
                    seeds=search.seeds,
                    leave=search.leave,
                    meter=search.meter,
                ),
                labels=batch.labels,
            )
            for budget in budgets
        }


def spsa(
    predict: Predict,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    eps: float,
    steps: int = 40,
    samples: int = 128,
    delta: float = 0.01,
    lr: float = 0.01,
    seeds: Sequence[int],
    leave: bool = True,
    batch: int = 256,
    meter: Meter | None = None,
) -> np.ndarray:
    """Look for misclassified images within an l-infinity ball, by queries alone.

    From a random point of the ball, Adam lowers the margin of the label along a gradient that is
    estimated at every iterate, which is then clipped to the ball and to [0, 1]. The mean of Adam
    serves as the next estimate's guess (see `Slopes`), which spares most of the queries.

    Args:
        predict: the model that is asked.
        images: (N, C, H, W) float32 in [0, 1].
        labels: (N,) int64 class indices.
        eps: radius in pixel units, e.g. 8 / 255.
        steps: of Adam.
        samples: random directions whose plain average each estimate is worth; at most so many, and
            at least a quarter of them, are asked about, each on one side.
        delta: how far probes are from the iterate, in every pixel. They are not clipped, so they
            may lie outside the ball and outside [0, 1].
        lr: step size of Adam.
        seeds: one for each image; all that is random about it.
        leave: stop with an image once an iterate is misclassified, and leave alone what is
            misclassified already. Otherwise every image is attacked to the end.
        batch: how many images are asked for together, at most. The probes of one image make up a
            batch, so that images are attacked one after another.
        meter: told of every model evaluation.

    Returns:
        The iterates that are misclassified, else the last ones, (N, C, H, W) float32.

    Raises:
        ValueError: an argument is out of range.

    Source: Uesato et al. 2018, algorithm 1, margin loss. Signs are drawn for every image, pixel
    and channel; the kernel of torchattacks shares them over the batch, asks on both sides of all
    of them, and starts at the image.
    """
    check_request(images, labels, seeds=seeds, eps=eps, batch=batch)
    for name, value, least in (("steps", steps, 1), ("samples", samples, 2)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    for name, value in (("delta", delta), ("lr", lr)):
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
    oracle = Oracle(predict, meter)
    found = images.copy()
    for index in oracle.right(images, labels, batch) if leave else range(len(images)):
        random = np.random.default_rng(seeds[index])
        label = int(labels[index])
        slopes = Slopes(oracle, label, random, samples=samples, delta=delta, batch=batch)
        low = np.maximum(images[index] - np.float32(eps), 0)
        high = np.minimum(images[index] + np.float32(eps), 1)
        start = images[index] + random.uniform(-eps, eps, low.shape)
        iterates = _Descent(start.astype(np.float32).clip(low, high), low, high, lr)
        for _ in range(steps):
            if leave and oracle.misclassifies(iterates.point, label):
                break
            iterates.step(slopes)
        found[index] = iterates.point
    return found


class _Descent:
    """Adam within a box.

    Attributes:
        point: the iterate, (C, H, W) float32.
    """

    def __init__(self, start: np.ndarray, low: np.ndarray, high: np.ndarray, lr: float) -> None:
        self.point = start
        self._low, self._high, self._lr = low, high, lr
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
        moved = self.point - self._lr * mean / (spread + _ADAM_EPS)
        self.point = moved.astype(np.float32).clip(self._low, self._high)

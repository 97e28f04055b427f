"""Attacks that see nothing of the served model but the class that it answers with."""

import math
from collections import deque
from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from robustness.attacks.base import (
    BallAttack,
    Batch,
    Budget,
    LinfOrL2,
    Search,
    change_size,
    check_images,
)
from robustness.attacks.queries import Oracle
from robustness.parsing import Count

if TYPE_CHECKING:
    from robustness.target import Target

PROBES = 32
"""Questions about one image that are asked together, at most."""
_SEATS = 64  # images attacked together, at most
_ENTRIES = 2**24  # of the arrays that these ask about together
_BATCH = 64  # images in one call of the model, at most

Walk = Generator[np.ndarray, np.ndarray, None]
"""A search around one image: it asks about (n, C, H, W) float32 in [0, 1], n at most `PROBES`, and
is answered which of them are misclassified, (n,) bool."""


class LabelAttack(BallAttack, frozen=True):
    """An attack that looks for the nearest misclassified input, and sees classes alone.

    One run serves every radius: its result is the nearest misclassified input that it asked about.
    """

    norm: LinfOrL2 = "Linf"
    queries: Count = Field(default=5000, description="model evaluations of one input at most")

    def searched(self, budget: Budget) -> Budget:
        """Any radius: a curve over all of them wants the nearest input, not one near enough."""
        return Budget(kind=budget.kind, value=math.inf, text="all")

    def cost(self, num_classes: int) -> int:
        """The queries; the first of them is the clean image."""
        return self.queries

    def run(self, target: "Target", batch: Batch, budget: Budget, search: Search) -> Batch:
        """See `Attack.run`; without a radius "nearest" holds distances, infinite where none is."""
        check_images(batch, search.seeds)
        oracle = Oracle(partial(target.predict, meter=search.meter))
        bounded = math.isfinite(budget.value)
        until = budget.value if bounded and search.leave else 0.0
        arrays = batch.images, batch.labels
        inputs, distance = self.nearest(oracle, *arrays, search.seeds, until=until)
        if bounded:
            near = distance <= budget.value
            inputs = np.where(near[:, None, None, None], inputs, batch.images)
            return Batch(inputs=inputs, labels=batch.labels)
        return Batch(inputs=inputs, labels=batch.labels, found={"nearest": distance})

    def nearest(
        self,
        oracle: Oracle,
        images: np.ndarray,
        labels: np.ndarray,
        seeds: Sequence[int],
        *,
        until: float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Look for the nearest misclassified inputs.

        Args:
            oracle: the model.
            images: (N, C, H, W) float32 in [0, 1].
            labels: (N,) int64.
            seeds: one for each image.
            until: an image needs no nearer input than that, and leaves.

        Returns:
            The nearest misclassified inputs (N, C, H, W), the clean one where none was found, and
            their distances (N,): 0 where the clean image is misclassified, inf where none was
            found.
        """
        found, distance = images.copy(), np.full(len(images), math.inf)
        entries = PROBES * max(math.prod(images.shape[1:]), 1)
        seats = min(_SEATS, max(_ENTRIES // entries, 1))
        waiting = deque(range(len(images)))
        running: list[_Seat] = []
        while waiting or running:
            while waiting and len(running) < seats:
                index = waiting.popleft()
                walk = self.walk(images[index], np.random.default_rng(seeds[index]))
                running.append(_Seat(index, images[index], walk, self.norm, self.queries))
            answers = _answers(oracle, running, labels)
            going = [seat.goes_on(each, until) for seat, each in zip(running, answers, strict=True)]
            for seat, on in zip(running, going, strict=True):
                if not on and seat.distance < math.inf:
                    found[seat.index], distance[seat.index] = seat.best, seat.distance
            running = [seat for seat, on in zip(running, going, strict=True) if on]
        known = np.isfinite(distance)
        distance[known] = change_size(images[known], found[known], self.norm)
        return found, distance

    def walk(self, image: np.ndarray, random: np.random.Generator) -> Walk:
        """Search around one image (C, H, W) that is classified as labelled, as long as it may."""
        raise NotImplementedError


class _Seat:
    """One image under attack: what it asks next, and the nearest misclassified input so far."""

    def __init__(
        self, index: int, image: np.ndarray, walk: Walk, norm: LinfOrL2, queries: int
    ) -> None:
        self.index, self._image, self._walk = index, image, walk
        self._norm: LinfOrL2 = norm
        self._left, self._asked = queries, False
        self.question = image[None]
        self.best, self.distance = image, math.inf

    def goes_on(self, fooled: np.ndarray, until: float) -> bool:
        """Take the answers (n,) bool to the question; whether there is another one."""
        self._left -= len(fooled)
        if fooled.any():
            self._keep(self.question[fooled])
        if self._left == 0 or self.distance <= until:
            return False
        try:
            asked = self._walk.send(fooled) if self._asked else next(self._walk)
        except StopIteration:
            return False
        self._asked, self.question = True, asked[: self._left]
        return True

    def _keep(self, inputs: np.ndarray) -> None:
        size = lengths(inputs - self._image, self._norm)
        place = int(size.argmin())
        if size[place] < self.distance:
            self.best, self.distance = inputs[place], float(size[place])


def _answers(oracle: Oracle, running: Sequence[_Seat], labels: np.ndarray) -> list[np.ndarray]:
    """Which questions of each image are misclassified, (n,) bool each."""
    asked = np.concatenate([seat.question for seat in running])
    sizes = [len(seat.question) for seat in running]
    own = np.repeat(labels[[seat.index for seat in running]], sizes)
    parts = [slice(start, start + _BATCH) for start in range(0, len(asked), _BATCH)]
    fooled = np.concatenate([oracle.fooled(asked[part], own[part]) for part in parts])
    return np.split(fooled, np.cumsum(sizes)[:-1])


def lengths(change: np.ndarray, norm: LinfOrL2) -> np.ndarray:
    """Norm of each change (n, C, H, W), (n,)."""
    flat = change.reshape(len(change), -1)
    return np.abs(flat).max(1) if norm == "Linf" else np.sqrt(np.square(flat).sum(1))

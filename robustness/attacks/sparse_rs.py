"""Sparse-RS: random searches by scores for a few pixels, or for one patch, that mislead a model."""

import math
from collections import deque
from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from robustness.attacks.base import (
    Attack,
    BallAttack,
    Batch,
    BoundsError,
    Budget,
    Info,
    Search,
    check_images,
    distinct,
    in_range,
)
from robustness.attacks.queries import Oracle
from robustness.parsing import Count, Counts, parse_eps

if TYPE_CHECKING:
    from robustness.target import Target

PAPER = "Croce et al. 2022 (Sparse-RS)"
REFERENCES = ("arXiv:2006.12834",)
_SEATS = 64  # images attacked together, at most
_CHECKS = np.array([0, 50, 200, 500, 1000, 2000, 4000, 6000, 8000])  # steps, of 10,000
_PIXELS = 0.3 / np.array([1, 2, 4, 5, 6, 8, 10, 12, 15, 20])  # share of the pixels that move
_PATCH_CHECKS = np.array([10, 50, 200, 500, 1000, 4000, 8000])
_PATCH = 0.4 / 2.0 ** np.arange(8)  # share of the patch's area that is repainted
_SHIFT = 0.75  # of the image's side: how far a patch moves at first

Walk = Generator[np.ndarray, float, None]
"""A search around one image: it asks about an image (C, H, W) float32 in [0, 1], and is answered
with its margin."""


class RandomSearch(Attack, frozen=True):
    """A search that keeps what lowers the margin; it asks the served model, one image at a time."""

    queries: Count = Field(default=5000, description="model evaluations of one input at most")

    def cost(self, num_classes: int) -> int:
        """The queries, and one for the clean image."""
        return self.queries + 1

    def run(self, target: "Target", batch: Batch, budget: Budget, search: Search) -> Batch:
        """See `Attack.run`; the images of the lowest margin met."""
        check_images(batch, search.seeds)
        oracle = Oracle(partial(target.predict, meter=search.meter))
        images, labels, found = batch.images, batch.labels, batch.images.copy()
        right = oracle.right(images, labels, _SEATS) if search.leave else np.arange(len(images))
        waiting, running = deque(right.tolist()), list[_Seat]()
        while waiting or running:
            while waiting and len(running) < _SEATS:
                index = waiting.popleft()
                random = np.random.default_rng(search.seeds[index])
                running.append(_Seat(index, self.walk(images[index], int(budget.value), random)))
            asked = np.stack([seat.question for seat in running])
            margins = oracle.margins(asked, labels[[seat.index for seat in running]]).tolist()
            going: list[_Seat] = []
            for seat, margin in zip(running, margins, strict=True):
                if margin < seat.least:
                    seat.least, found[seat.index] = margin, seat.question
                seat.asked += 1
                if seat.asked < self.queries and not (search.leave and margin < 0):
                    seat.question = seat.walk.send(margin)
                    going.append(seat)
            running = going
        return Batch(inputs=found, labels=labels)

    def walk(self, image: np.ndarray, budget: int, random: np.random.Generator) -> Walk:
        """Search around one image (C, H, W), as long as it is answered."""
        raise NotImplementedError


class _Seat:
    """One image under attack: what it asks next, and the least margin so far."""

    def __init__(self, index: int, walk: Walk) -> None:
        self.index, self.walk, self.question = index, walk, next(walk)
        self.least, self.asked = math.inf, 0


class SparseRS(RandomSearch, BallAttack, frozen=True):
    """Some pixels become corners of the cube of colors; which ones and which colors is searched.

    Every query gives some of the changed pixels back and changes as many others, fewer and fewer of
    them, and is kept if it lowers the margin.

    Source: Croce et al. 2022, algorithm 2 (l0), alpha 0.3 with the schedule of its appendix.
    """

    info: ClassVar[Info] = Info(
        title="Sparse-RS",
        paper=PAPER,
        references=REFERENCES,
        what="searches for the few pixels, all channels together, that mislead a model",
        access="scores",
        norms=("L0",),
    )
    name: Literal["sparse-rs"] = "sparse-rs"
    norm: Annotated[Literal["L0"], Field(description="eps counts pixels")] = "L0"

    @field_validator("eps")
    @classmethod
    def _whole_pixels(cls, eps: list[str]) -> list[str]:
        if any(not parse_eps(text, limit=math.inf).is_integer() for text in eps):
            raise ValueError(f"eps must be whole numbers of pixels, got {str(eps)[:200]}")
        return eps

    def walk(self, image: np.ndarray, budget: int, random: np.random.Generator) -> Walk:
        """See `RandomSearch.walk`."""
        clean = image.reshape(len(image), -1)
        order = random.permutation(clean.shape[1])
        budget = min(budget, len(order))
        changed, others = order[:budget], order[budget:]
        best = clean.copy()
        best[:, changed] = _colors(random, clean, budget)
        least = yield best.reshape(image.shape)
        for step in range(1, self.queries):
            count = max(int(_at(_CHECKS, _PIXELS, step, self.queries) * budget), 1)
            out = random.permutation(budget)[: min(count, max(len(others), 1))]
            into = random.permutation(len(others))[: len(out)]
            new, painted = best.copy(), others[into] if len(others) else changed[out]
            new[:, changed[out]] = clean[:, changed[out]]
            new[:, painted] = _colors(random, clean, len(painted))
            margin = yield new.reshape(image.shape)
            if margin < least:
                least, best = margin, new
                if len(others):
                    changed[out], others[into] = others[into], changed[out]


class PatchRS(RandomSearch, frozen=True):
    """One square patch anywhere in the image, whose place and colors are searched.

    Every query repaints a square of the patch, smaller and smaller, or, every fifth and later less
    often, moves the whole patch, less and less far; it is kept if it lowers the margin.

    Source: Croce et al. 2022, algorithm 3 (image-specific patches), alpha 0.4. We draw places
    uniformly from all where the patch fits, at images of any shape.
    """

    info: ClassVar[Info] = Info(
        title="Patch-RS",
        paper=PAPER,
        references=REFERENCES,
        what="searches for the place and the colors of one square patch",
        access="scores",
        budget="patch",
    )
    name: Literal["patch-rs"] = "patch-rs"
    patch: Counts = Field(default=[5], description="sides of the square patch, in pixels")

    @field_validator("patch")
    @classmethod
    def _distinct_sides(cls, patch: list[int]) -> list[int]:
        return distinct("patch", patch)

    def walk(self, image: np.ndarray, budget: int, random: np.random.Generator) -> Walk:
        """See `RandomSearch.walk`."""
        shape = np.array(image.shape[1:])
        side = min(budget, *shape.tolist())
        room, channels = shape - side, len(image)
        place = random.integers(0, room + 1)
        patch = np.broadcast_to(
            random.integers(0, 2, (channels, 1, side)), (channels, side, side)
        ).astype(np.float32)
        least = yield _pasted(image, patch, place)
        for step in range(1, self.queries):
            new, moved = patch.copy(), place
            reach = (_SHIFT * (1 - step / self.queries) * shape).astype(int)
            if step % (5 * (1 + step // 1000)) == 0 and reach.any():
                moved = (place + random.integers(-reach, reach + 1)).clip(0, room)
            else:
                share = _at(_PATCH_CHECKS, _PATCH, step, self.queries)
                part = max(int(math.sqrt(share) * side), 1)
                top, left = random.integers(0, side - part + 1, 2)
                square = new[:, top : top + part, left : left + part]
                square += 2 * random.integers(0, 2, (channels, 1, 1)).astype(np.float32) - 1
                np.clip(square, 0, 1, out=square)
            margin = yield _pasted(image, new, moved)
            if margin < least:
                least, patch, place = margin, new, moved

    def allowed(
        self, clean: Batch, made: Batch, budget: Budget, target: "Target", seeds: Sequence[int]
    ) -> np.ndarray:
        """Finite, inside [0, 1], and all that changed within one square."""
        return in_range(made.images) & (_extent(clean.images, made.images) <= budget.value)

    def size(self, clean: Batch, adversarial: Batch, budget: Budget) -> np.ndarray:
        """See `Attack.size`; the side of the smallest square that holds all that changed."""
        if not in_range(adversarial.images).all():
            raise BoundsError("adversarial inputs must be finite and lie in [0, 1]")
        extent = _extent(clean.images, adversarial.images)
        if extent.max(initial=0) > budget.value:
            raise BoundsError(
                f"adversarial inputs must change one square of {budget.text} pixels a side, "
                f"got {extent.max():.0f}"
            )
        return extent

    def describe(self, budget: Budget) -> str:
        """See `Attack.describe`."""
        return f"with one patch of {budget.text}x{budget.text} pixels"


def _at(checks: np.ndarray, values: np.ndarray, step: int, queries: int) -> float:
    """What a schedule over 10,000 steps says at one of so many."""
    return float(values[np.searchsorted(checks, step * 10_000 // queries)])


def _colors(random: np.random.Generator, clean: np.ndarray, count: int) -> np.ndarray:
    """Corners of the cube of colors, (C, count)."""
    return random.integers(0, 2, (len(clean), count)).astype(np.float32)


def _pasted(image: np.ndarray, patch: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The image (C, H, W) with a patch (C, s, s) on it, its upper left corner at a place."""
    (top, left), side = place, patch.shape[1]
    made = image.copy()
    made[:, top : top + side, left : left + side] = patch
    return made


def _extent(clean: np.ndarray, made: np.ndarray) -> np.ndarray:
    """Sides of the smallest squares that hold all that differs, (N,) float64; 0 for nothing."""
    changed = (clean != made).any(axis=1)  # (N, H, W)
    sides = []
    for axis in (1, 2):
        lines = changed.any(axis=3 - axis)
        last = lines.shape[1] - lines[:, ::-1].argmax(1)
        sides.append(np.where(lines.any(1), last - lines.argmax(1), 0))
    return np.maximum(*sides).astype(np.float64)

"""HopSkipJump: along the decision boundary, by its normal as estimated from classes alone."""

import itertools
import math
from collections.abc import Generator
from typing import ClassVar, Literal

import numpy as np

from robustness.attacks.base import Info
from robustness.attacks.labels import PROBES, LabelAttack, Walk, lengths

_FIRST = 20  # B_0, probes of the first estimate
_NEAR = np.float32(0.1)  # l2 distance of probes while the first point says little about distances
_SHARE = 0.03  # of the point's l2 distance that later probes keep from it
_CLOSE = 1e-3  # where a bisection ends, as a share of the way
_NOISES, _DRAWS = 14, 7  # starts drawn together, and how often until one is misclassified
_COARSE = 4  # blocks of noise along a side at first, twice as many with each further draw
_LOOKS = 3  # of the bisections that tell the nearest start
_HALVINGS = 30  # of a step, until it leads nowhere

Point = Generator[np.ndarray, np.ndarray, np.ndarray]
"""A part of a `Walk` that ends at an input (C, H, W)."""


class HopSkipJump(LabelAttack, frozen=True):
    """Steps along the estimated normal of the decision boundary, each followed by a bisection.

    From a misclassified input, bisection towards the image leads to the boundary. There the classes
    of random probes tell its normal; a step along it, halved until it is misclassified, and another
    bisection lead to a nearer point, from which it begins anew with more probes.

    Source: Chen, Jordan & Wainwright 2020, "HopSkipJumpAttack: A query-efficient decision-based
    attack", algorithm 2. Ours begins with fewer probes (20, not 100) and bisects to 1/1000 of the
    way, which spares queries; probes keep a distance of 3 % of the l2 distance in both norms, and
    the nearest of several starts is taken, see `_start`.
    """

    info: ClassVar[Info] = Info(
        title="HopSkipJump",
        paper="Chen et al. 2020 (HopSkipJump)",
        references=("arXiv:1904.02144",),
        what="the nearest misclassified input, along the decision boundary, by classes alone",
        access="label",
        norms=("Linf", "L2"),
        minimal=True,
    )
    name: Literal["hopskipjump"] = "hopskipjump"

    def walk(self, image: np.ndarray, random: np.random.Generator) -> Walk:
        """See `LabelAttack.walk`; no end where it got a start."""
        point = yield from _start(image, random)
        for step in itertools.count(1) if len(point) else ():
            point = yield from self._approach(image, point)
            normal = yield from self._normal(image, point, step, random)
            point = yield from self._leap(image, point, normal, step)

    def _approach(self, image: np.ndarray, point: np.ndarray) -> Point:
        """Bisect the way from a misclassified point to the image."""
        whole = 1.0 if self.norm == "L2" else float(np.abs(point - image).max())
        low, high, best = 0.0, whole, point
        while high - low > _CLOSE * whole:
            middle = (low + high) / 2
            asked = self._between(image, point, np.float32(middle))
            [fooled] = yield asked[None]
            low, high, best = (low, middle, asked) if fooled else (middle, high, best)
        return best

    def _between(self, image: np.ndarray, point: np.ndarray, where: np.float32) -> np.ndarray:
        """A share of the way (l2), or the point drawn into a ball around the image (l-infinity)."""
        if self.norm == "L2":
            return image + where * (point - image)
        return np.clip(point, image - where, image + where)

    def _normal(
        self, image: np.ndarray, point: np.ndarray, step: int, random: np.random.Generator
    ) -> Point:
        """The direction (C, H, W) of misclassified inputs, of length 1; eq. 9 and 15."""
        far = _NEAR if step == 1 else np.float32(_SHARE * lengths((point - image)[None], "L2")[0])
        count, fooled_ones = int(_FIRST * math.sqrt(step)), 0
        moved, led = np.zeros(point.shape, np.float32), np.zeros(point.shape, np.float32)
        for start in range(0, count, PROBES):
            draws = random.standard_normal((min(PROBES, count - start), *point.shape), np.float32)
            draws *= far / lengths(draws, "L2")[:, None, None, None]
            probes = np.clip(point + draws, 0, 1)
            fooled = yield probes
            moves = probes - point
            moved += moves.sum(0)
            led += moves[fooled].sum(0)
            fooled_ones += int(fooled.sum())
        # The mean over the misclassified probes less that over all: no class of its own weighs.
        way = led - moved * (fooled_ones / count)
        if fooled_ones in (0, count):
            way = moved if fooled_ones else -moved
        if self.norm == "Linf":
            return np.sign(way)
        return way / max(float(lengths(way[None], "L2")[0]), 1e-12)

    def _leap(self, image: np.ndarray, point: np.ndarray, normal: np.ndarray, step: int) -> Point:
        """A misclassified input along the normal; the point itself where none is found."""
        size = float(lengths((point - image)[None], self.norm)[0]) / math.sqrt(step)
        for _ in range(_HALVINGS):
            asked = np.clip(point + np.float32(size) * normal, 0, 1)
            [fooled] = yield asked[None]
            if fooled:
                return asked
            size /= 2
        return point


def _start(image: np.ndarray, random: np.random.Generator) -> Point:
    """The nearest of a few misclassified inputs after three bisections; (0, H, W) without any.

    Tried are black, white and noise of large blocks, which more classes are found in than in that
    of pixels, and nearer; the paper takes the first noise of pixels that will do.
    """
    few = [np.zeros_like(image), np.ones_like(image)]
    for draw in range(_DRAWS):
        starts = np.stack([*few, *_noise(image.shape, _COARSE * 2**draw, random)])
        fooled, few = (yield starts), []
        if fooled.any():
            break
    else:
        return image[:0]
    starts = starts[fooled]
    far = lengths(starts - image, "L2")
    least, most = (np.full(len(starts), end, np.float32) for end in (0, 1))
    for _ in range(_LOOKS):
        near = least * far <= (most * far).min()
        starts, far, least, most = starts[near], far[near], least[near], most[near]
        middle = (least + most) / 2
        fooled = yield image + middle[:, None, None, None] * (starts - image)
        least, most = np.where(fooled, least, middle), np.where(fooled, middle, most)
    best = int((most * far).argmin())
    return image + most[best] * (starts[best] - image)


def _noise(shape: tuple[int, ...], blocks: int, random: np.random.Generator) -> np.ndarray:
    """Images (n, C, H, W) of so many blocks of one color along each side, of pixels at most."""
    channels, *sides = shape
    down, across = (np.arange(side) * min(blocks, side) // side for side in sides)
    drawn = random.random((_NOISES, channels, down[-1] + 1, across[-1] + 1), dtype=np.float32)
    return drawn[:, :, down[:, None], across]

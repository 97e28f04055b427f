"""RayS: a search among directions of signs, by classes alone, for the shortest way out."""

import itertools
from collections.abc import Generator
from typing import ClassVar, Literal

import numpy as np

from robustness.attacks.base import Info, Linf
from robustness.attacks.labels import LabelAttack, Walk

_CLOSE = 1e-3  # where a bisection ends: a quarter of a level of 255

Radius = Generator[np.ndarray, np.ndarray, float]
"""A part of a `Walk` that ends with a radius."""


class RayS(LabelAttack, frozen=True):
    """Flips the signs of blocks of pixels, where the model is then misled nearer by.

    A direction moves every pixel by the radius, up or down. Blocks of pixels in a row are turned
    around one after the other, first all, then halves, quarters, down to single pixels, which are
    gone through again and again; a turn is kept if it misleads the model at the best radius so far,
    and bisection finds its own. Nothing is drawn. The first direction is down in every pixel.

    Source: Chen & Gu 2020, "RayS: A ray searching method for hard-label adversarial attack",
    algorithms 2 and 3, whose first direction is up.
    """

    info: ClassVar[Info] = Info(
        title="RayS",
        paper="Chen and Gu 2020",
        references=("arXiv:2006.12792",),
        what="the nearest misclassified input among directions of signs, with few queries",
        access="label",
        norms=("Linf",),
        minimal=True,
    )
    name: Literal["rays"] = "rays"
    norm: Linf = "Linf"

    def walk(self, image: np.ndarray, random: np.random.Generator) -> Walk:
        """See `LabelAttack.walk`."""
        signs, radius = -np.ones(image.size, np.float32), 1.0
        [fooled] = yield _moved(image, signs, radius)
        radius = (yield from _bisect(image, signs, radius)) if fooled else radius
        for level in itertools.count():
            for block in np.array_split(np.arange(image.size), min(2**level, image.size)):
                turned = signs.copy()
                turned[block] *= -1
                [fooled] = yield _moved(image, turned, radius)
                if fooled:
                    signs, radius = turned, (yield from _bisect(image, turned, radius))


def _bisect(image: np.ndarray, signs: np.ndarray, radius: float) -> Radius:
    """The least radius at which a direction misleads, which it does at this one."""
    low, high = 0.0, radius
    while high - low > _CLOSE:
        middle = (low + high) / 2
        [fooled] = yield _moved(image, signs, middle)
        low, high = (low, middle) if fooled else (middle, high)
    return high


def _moved(image: np.ndarray, signs: np.ndarray, radius: float) -> np.ndarray:
    """The image (1, C, H, W) so far along a direction (D,), within [0, 1]."""
    moved = image + np.float32(radius) * signs.reshape(image.shape)
    return np.clip(moved, 0, 1)[None]

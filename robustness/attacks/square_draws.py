"""Where Square puts its squares, and of which sign."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from robustness.attacks.base import LinfOrL2

Shape = tuple[int, int, int]

_P_INIT = 0.8
_HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # steps; as in AutoAttack
_TILES = 5  # of an l2 start, along each side


@dataclass(frozen=True, slots=True)
class Moves:
    """One square for each of n images, two for l2.

    Attributes:
        side: (n,) lengths in pixels.
        places: (n, 2) top row and left column, (n, 4) with those of the second square.
        signs: (n, C) float32, -1 or 1.
        turned: (n,) bool, whether the pattern of l2 lies on its side.
    """

    side: np.ndarray
    places: np.ndarray
    signs: np.ndarray
    turned: np.ndarray


class Draws:
    """Draws that depend on an image's own seed and on nothing else; all of them made at its start.

    Squares are placed uniformly over all places where they fit. A seat is where an image sits while
    it is attacked.

    Args:
        shape: (C, H, W).
        norm: of the attack.
        queries: number of moves.
        seeds: one for each image.
        seats: how many images are attacked together.
    """

    def __init__(
        self, shape: Shape, norm: LinfOrL2, queries: int, seeds: Sequence[int], seats: int
    ) -> None:
        self._shape, self._norm, self._seeds = shape, norm, seeds
        self._sides = side_schedule(shape, norm, queries)
        self._places = np.zeros((seats, queries, 2 if norm == "Linf" else 4), np.int32)
        self._signs = np.zeros((seats, queries, shape[0]), np.int8)
        self._turned = np.zeros((seats, queries), bool)

    def start(self, image: int, seat: int) -> np.ndarray:
        """Seat an image; the perturbation that it starts with, (C, H, W), of norm 1."""
        random = np.random.default_rng(self._seeds[image])
        channels, height, width = self._shape
        queries, ends = self._places.shape[1:]
        room = np.array([height, width] * (ends // 2)) + 1 - self._sides[:, None]
        self._places[seat] = random.random((queries, ends)) * room
        self._signs[seat] = _signs(random, (queries, channels))
        if self._norm == "Linf":
            return stripes(_signs(random, (channels, 1, width)), height)
        self._turned[seat] = random.integers(0, 2, queries)
        rows, columns = tiles(self._shape)[1:]
        count = len(rows) * len(columns)
        return tiled(self._shape, _signs(random, (count, channels)), random.integers(0, 2, count))

    def moves(self, seats: np.ndarray, steps: np.ndarray) -> Moves:
        """The next moves of n >= 0 images, which may be at different steps, (n,) and (n,)."""
        return Moves(
            self._sides[steps],
            self._places[seats, steps],
            self._signs[seats, steps].astype(np.float32),
            self._turned[seats, steps],
        )


def side_schedule(shape: Shape, norm: LinfOrL2, queries: int) -> np.ndarray:
    """Side of the square at every step, (queries,) pixels; the area falls from .8 of the image.

    For l2 it is odd and at least 3. It never exceeds the image.

    Source: Andriushchenko et al. 2020, section 3, without rescaling to other budgets.
    """
    _, height, width = shape
    area = _P_INIT / 2.0 ** np.searchsorted(_HALVED_AFTER, np.arange(queries)) * height * width
    side = np.rint(np.sqrt(area)).astype(int)
    largest = min(height, width)
    if norm == "Linf":
        return side.clip(1, largest)
    return (side.clip(3) // 2 * 2 + 1).clip(max=largest - 1 + largest % 2)


@cache
def pattern(side: int) -> np.ndarray:
    """The perturbation of one l2 square, (side, side) float32 of norm 1: a hill and a hollow.

    Source: Andriushchenko et al. 2020, section 3.3 (eta).
    """
    upper = side // 2
    both = np.concatenate([_hill(upper, side), -_hill(side - upper, side)])
    return both / np.sqrt(np.square(both).sum())


def _hill(height: int, width: int) -> np.ndarray:
    hill = np.zeros((height, width), np.float32)
    middle_row, middle_column = height // 2, width // 2
    for ring in range(max(middle_row, middle_column) + 1):
        rows = slice(max(middle_row - ring, 0), middle_row + ring + 1)
        columns = slice(max(middle_column - ring, 0), middle_column + ring + 1)
        hill[rows, columns] += 1 / (ring + 1) ** 2
    return hill / np.sqrt(np.square(hill).sum())


def tiles(shape: Shape) -> tuple[int, range, range]:
    """Side of the tiles of an l2 start, and the rows and columns that they begin at."""
    side = max(min(shape[1:]) // _TILES, 1)
    rows, columns = (
        range(max(size - side * _TILES, 0) // 2, size - side + 1, side)[:_TILES]
        for size in shape[1:]
    )
    return side, rows, columns


def tiled(shape: Shape, signs: np.ndarray, turned: np.ndarray) -> np.ndarray:
    """An l2 start of norm 1, (C, H, W), from signs (tiles, C) and turns (tiles,)."""
    side, rows, columns = tiles(shape)
    start = np.zeros(shape, np.float32)
    corners = [(row, column) for row in rows for column in columns]
    for (row, column), sign, turn in zip(corners, signs, turned, strict=True):
        shown = pattern(side).T if turn else pattern(side)
        start[:, row : row + side, column : column + side] = shown * sign[:, None, None]
    return start / (np.sqrt(np.square(start).sum()) + np.float32(1e-12))


def stripes(signs: np.ndarray, height: int) -> np.ndarray:
    """An l-infinity start, (C, H, W), from the signs (C, 1, W) of its columns."""
    return np.repeat(signs, height, axis=1).astype(np.float32)


def _signs(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return 2 * random.integers(0, 2, shape, dtype=np.int8) - 1

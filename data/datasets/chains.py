"""Chains of dashes that grow side by side, one in each of many fields.

Points are (y, x) pixels of the window; a field is the window with an edge around it, flat, and says
how full each pixel is, from 0 to 255. Dashes are y, x and the number of a direction (`paddles`).

Source: Linsley et al. 2018, with the sizes of LRA's Pathfinder32 (Tay et al. 2021).
"""

from dataclasses import dataclass

import numpy as np

from data.datasets import paddles
from data.datasets.paddles import REACH

SIZE = 32
PADDING = 1
ATTEMPTS = 3
"""The first attempt to place a dash, and 2 more."""
SIDE = SIZE + 2 * REACH


def flat(points: np.ndarray) -> np.ndarray:
    """Place in a flat field of points (..., 2) in the window; also of offsets, less the edge."""
    return (points[..., 0] + REACH) * SIDE + points[..., 1] + REACH


def _shift(offsets: np.ndarray) -> np.ndarray:
    return offsets[..., 0] * SIDE + offsets[..., 1]


SQUARE = _shift(np.argwhere(np.ones((2 * REACH + 1,) * 2)) - REACH)
_NEAR = _shift(paddles.disc_offsets(paddles.MARGIN))
_CORES = _shift(paddles.CORES)
_ROOMS = paddles.ROOMS.reshape(len(paddles.ROOMS), -1)
WINDOW = flat(np.argwhere(np.ones((SIZE, SIZE))))


@dataclass(slots=True)
class Chains:
    """Chains being grown, one in each of M fields.

    Attributes:
        fields: (M, SIDE ** 2) uint8, how full each pixel is: everything but the newest dash.
        newest: (M, 3) y, x and direction of the newest dash.
        pivots: (M, 2) center of the circle that the newest dash leads away from.
        headings: (M,) direction in which the chain goes on.
    """

    fields: np.ndarray
    newest: np.ndarray
    pivots: np.ndarray
    headings: np.ndarray

    def take(self, chosen: np.ndarray) -> "Chains":
        """The chains chosen by index or mask."""
        return Chains(
            self.fields[chosen], self.newest[chosen], self.pivots[chosen], self.headings[chosen]
        )


def begin(fields: np.ndarray, first: np.ndarray) -> tuple[Chains, np.ndarray]:
    """Begin chains with their first dashes; also whether ends and pivots lie in the window."""
    starts, directions = first[:, :2], first[:, 2]
    pivots = starts + paddles.PIVOTS[directions]
    inside = _inside(pivots) & _inside(starts + paddles.ENDS[directions])
    return Chains(fields, first, pivots, directions), inside


def grow(rng: np.random.Generator, chains: Chains) -> tuple[Chains, np.ndarray]:
    """Add a dash to each chain.

    Returns:
        The chains that found a way on, and which they are: (M,) bool.
    """
    pivots = chains.pivots + paddles.STEPS[chains.headings]
    ends = pivots[:, None] + paddles.CIRCLE  # (M, K, 2)
    inside = _inside(ends)
    places = flat(np.where(inside[..., None], ends, 0))
    rows = np.arange(len(pivots))
    near = chains.fields[rows[:, None, None], places[..., None] + _NEAR].max(2)
    weights = paddles.WEIGHTS[chains.headings] * inside * (255.0 - near) / 255
    choice = _choose(rng, chains.fields, places, weights.cumsum(1))
    found = choice >= 0
    chains, choice = chains.take(found), choice[found]
    occupy(chains.fields, chains.newest)
    chains.newest = np.column_stack([ends[rows[found], choice], paddles.BACK[choice]])
    chains.pivots, chains.headings = pivots[found], paddles.ONWARD[choice]
    return chains, found


def _choose(
    rng: np.random.Generator, fields: np.ndarray, places: np.ndarray, total: np.ndarray
) -> np.ndarray:
    """Draw where each dash ends, again where it would overlap others; (M,), -1 if it always does.

    Args:
        rng: source of all draws.
        fields: what is occupied, (M, SIDE ** 2).
        places: where it may end, (M, K).
        total: running sums of the weights of these places, (M, K).
    """
    chosen = np.full(len(fields), -1)
    pending = np.flatnonzero(total[:, -1] >= 1e-4)
    for _ in range(ATTEMPTS):
        drawn = rng.random(len(pending)) * total[pending, -1]
        choice = (total[pending] <= drawn[:, None]).sum(1)
        directions = paddles.BACK[choice]
        core = places[pending, choice][:, None] + _CORES[directions]
        free = (fields[pending[:, None], core] < paddles.LIMITS[directions]).all(1)
        chosen[pending[free]] = choice[free]
        pending = pending[~free]
    return chosen


def _inside(points: np.ndarray) -> np.ndarray:
    return np.asarray(((points >= 0) & (points < SIZE)).all(-1))


def occupy(fields: np.ndarray, dashes: np.ndarray) -> None:
    """Mark the room of one dash in each field."""
    places = np.arange(len(fields))[:, None], flat(dashes[:, :2])[:, None] + SQUARE
    fields[places] = np.maximum(fields[places], _ROOMS[dashes[:, 2]])


def empty_fields(count: int, border: int) -> np.ndarray:
    """Fields of which only a border of the window is occupied: (count, SIDE ** 2) uint8."""
    window = np.full((SIZE, SIZE), 255, np.uint8)
    window[border : SIZE - border, border : SIZE - border] = 0
    return np.tile(np.pad(window, REACH).ravel(), (count, 1))


def free_places(fields: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Where in each field a dash of this direction fits: (M, SIZE ** 2) bool."""
    rows = np.arange(len(fields))[:, None]
    free = np.ones((len(fields), len(WINDOW)), bool)
    for core, limit in zip(_CORES[directions].T, paddles.LIMITS[directions].T, strict=True):
        free &= fields[rows, WINDOW + core[:, None]] < limit[:, None]
    return free


def first_dashes(rng: np.random.Generator, directions: np.ndarray, free: np.ndarray) -> np.ndarray:
    """First dashes of these directions at random free places: (M, 3); direction -1 if none."""
    counts = free.cumsum(1)
    drawn = rng.random(len(free)) * counts[:, -1]
    y, x = np.divmod((counts <= drawn[:, None]).sum(1), SIZE)
    return np.column_stack([y, x, np.where(counts[:, -1] > 0, directions, -1)])

"""LRA Pathfinder32, the hard set: are two discs on one dashed contour?

Where the description of the set leaves a choice, that of the original generator is taken: positions
are rounded up, ends on the circle cut to whole pixels, the first chain begins at twice the seed
distance from the edges, distractors are brighter, the image is stretched so that its brightest
pixel is 255. Unlike there, the newest dash of the other chain is occupied, too, so that no two
dashes overlap, and scenes that could be read either way are left out.

Points are (y, x) pixels of the window; a field is the window with an edge around it, flat, and says
how full each pixel is, from 0 to 255. Dashes are y, x and the number of a direction (`paddles`).

Source: Linsley et al. 2018; Tay et al. 2021 (Long Range Arena) for the sizes.
"""

import functools
from dataclasses import dataclass

import numpy as np

from data.datasets import paddles
from data.datasets.contours import contour_ends
from data.datasets.paddles import REACH
from data.token_set import Ragged

SIZE = 32
PADDING = 1
ATTEMPTS = 3
"""The first attempt to place a dash, and 2 more."""
SIDE = SIZE + 2 * REACH
CONTOUR_LENGTH = 14
DISTRACTOR_LENGTH = CONTOUR_LENGTH // 3
DISTRACTORS = 20 // DISTRACTOR_LENGTH
DISTRACTOR_ATTEMPTS = 5
"""The first attempt, and 4 more."""
SEED_DISTANCE = 7
SNAKE_CONTRAST, PADDLE_CONTRAST = 2.0, 0.75
_ATTEMPTS = 2048
_BLOCK = 1000
_MOST_UNCLEAR = 0.02


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


@dataclass(slots=True)
class Scenes:
    """Scenes of two long chains and some short ones.

    Attributes:
        dashes: (M, 2, CONTOUR_LENGTH, 3) int64 of y, x, direction; chains from their tips on.
        distractors: (M, DISTRACTORS, DISTRACTOR_LENGTH, 3), the same; direction -1 if missing.
        labels: (M,) int64, 1 if both discs are on the first chain.
    """

    dashes: np.ndarray
    distractors: np.ndarray
    labels: np.ndarray

    @property
    def discs(self) -> np.ndarray:
        """Centers of the discs, the first chain's tip and a far end: (M, 2, 2)."""
        far = self.dashes[np.arange(len(self.labels)), 1 - self.labels, -1, :2]
        return np.stack([self.dashes[:, 0, 0, :2], far], axis=1)


@functools.cache
def _central_places() -> np.ndarray:
    """Where the first chain may begin, for each direction: (DEGREES, SIZE ** 2) bool."""
    fields = empty_fields(paddles.DEGREES, 2 * SEED_DISTANCE)
    return free_places(fields, np.arange(paddles.DEGREES))


def _seeds_beside(rng: np.random.Generator, first: np.ndarray) -> np.ndarray:
    """First dashes at the seed distance from the tips of others, in any direction: (M, 3)."""
    directions, around = rng.integers(0, paddles.DEGREES, (2, len(first)))
    angles = paddles.ANGLES[around]
    shift = SEED_DISTANCE * np.stack([np.sin(angles), np.cos(angles)], axis=1)
    return np.column_stack([first[:, :2] + np.rint(shift).astype(np.int64), directions])


def _targets(rng: np.random.Generator, attempts: int) -> tuple[np.ndarray, np.ndarray]:
    """Try to grow pairs of long chains; about one attempt in thirty succeeds.

    Returns:
        Their dashes (M, 2, CONTOUR_LENGTH, 3), and the fields that they leave, (M, SIDE ** 2).
    """
    directions = rng.integers(0, paddles.DEGREES, attempts)
    first = first_dashes(rng, directions, _central_places()[directions])
    second = _seeds_beside(rng, first)
    pair = [begin(empty_fields(attempts, PADDING), seed)[0] for seed in (first, second)]
    occupy(pair[0].fields, second)
    occupy(pair[1].fields, first)
    dashes = np.zeros((attempts, 2, CONTOUR_LENGTH, 3), np.int64)
    dashes[:, 0, 0], dashes[:, 1, 0] = first, second
    for step in range(1, CONTOUR_LENGTH):
        for which in (0, 1):
            pair[which], found = grow(rng, pair[which])
            pair[1 - which] = pair[1 - which].take(found)
            dashes = dashes[found]
            dashes[:, which, step] = pair[which].newest
            occupy(pair[1 - which].fields, pair[which].newest)
    # The first chain's field has everything but its own last dash.
    occupy(pair[0].fields, pair[0].newest)
    return dashes, pair[0].fields


def _short_chains(
    rng: np.random.Generator, fields: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Try once to grow a short chain in each field.

    Returns:
        Where it succeeded, (N,); its dashes (N, DISTRACTOR_LENGTH, 3); the fields with it.
    """
    chains, rows = _short_seeds(rng, fields)
    grown = chains.newest[:, None]
    for _ in range(DISTRACTOR_LENGTH - 1):
        chains, found = grow(rng, chains)
        rows = rows[found]
        grown = np.concatenate([grown[found], chains.newest[:, None]], axis=1)
    occupy(chains.fields, chains.newest)
    return rows, grown, chains.fields


def _short_seeds(rng: np.random.Generator, fields: np.ndarray) -> tuple[Chains, np.ndarray]:
    """Begin short chains; where the end or the pivot lies outside the window, try again."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    missing = np.arange(len(fields))
    for _ in range(ATTEMPTS):
        directions = rng.integers(0, paddles.DEGREES, len(missing))
        seeds = first_dashes(rng, directions, free_places(fields[missing], directions))
        missing, seeds = missing[seeds[:, 2] >= 0], seeds[seeds[:, 2] >= 0]
        inside = begin(fields, seeds)[1]
        found.append((missing[inside], seeds[inside]))
        missing = missing[~inside]
    rows, seeds = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return begin(fields[rows], seeds)[0], rows


def _distractors(rng: np.random.Generator, fields: np.ndarray) -> np.ndarray:
    """Grow one short chain in each field, which is then occupied; direction -1 where none fits.

    Returns:
        (M, DISTRACTOR_LENGTH, 3).
    """
    dashes = np.full((len(fields), DISTRACTOR_LENGTH, 3), -1)
    for _ in range(DISTRACTOR_ATTEMPTS):
        missing = np.flatnonzero(dashes[:, 0, 2] < 0)
        rows, grown, left = _short_chains(rng, fields[missing])
        dashes[missing[rows]], fields[missing[rows]] = grown, left
    return dashes


def draw_scenes(rng: np.random.Generator, count: int) -> Scenes:
    """Draw scenes, all from one source of random numbers."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    while sum(len(dashes) for dashes, _ in found) < count:
        found.append(_targets(rng, _ATTEMPTS))
    dashes, fields = (np.concatenate(parts)[:count] for parts in zip(*found, strict=True))
    distractors = [_distractors(rng, fields) for _ in range(DISTRACTORS)]
    return Scenes(dashes, np.stack(distractors, axis=1), rng.integers(0, 2, count))


def draw_block(number: int) -> tuple[Ragged, np.ndarray]:
    """Draw one block of the set: pictures row by row, (1024,) each, and labels.

    Scenes that the dashes alone do not decide are left out: about one in three hundred, where two
    contours happen to meet in one pivot, so that they could be followed either way.

    Raises:
        ValueError: there are more of these than chance explains.
    """
    scenes = draw_scenes(np.random.default_rng([0, number]), _BLOCK)
    left_out = unclear(scenes)
    if len(left_out) > _MOST_UNCLEAR * _BLOCK:
        raise ValueError(f"{len(left_out)} of {_BLOCK} labels are not confirmed")
    pictures = np.delete(render(scenes), left_out, axis=0).reshape(-1, SIZE * SIZE)
    return Ragged.of(pictures, np.uint8), np.delete(scenes.labels, left_out)


def unclear(scenes: Scenes) -> list[int]:
    """Scenes whose first contour, followed from its tip, does not end where it alone should."""
    count = len(scenes.labels)
    chains = scenes.dashes.reshape(count, -1, 3), scenes.distractors.reshape(count, -1, 3)
    angles = paddles.ANGLES.tolist()
    found: list[int] = []
    for index, dashes in enumerate(np.concatenate(chains, axis=1).tolist()):
        shown = [(y, x, angles[direction]) for y, x, direction in dashes if direction >= 0]
        tip, end, other = (
            (dashes[place][0], dashes[place][1])
            for place in (0, CONTOUR_LENGTH - 1, 2 * CONTOUR_LENGTH - 1)
        )
        ends = contour_ends(shown, tip, length=CONTOUR_LENGTH)
        if end not in ends or other in ends:
            found.append(index)
    return found


def render(scenes: Scenes) -> np.ndarray:
    """Pictures of scenes: (M, SIZE, SIZE) uint8, white on black."""
    count = len(scenes.labels)
    canvas = np.zeros((count, SIDE**2))
    for chains, contrast in (
        (scenes.dashes, SNAKE_CONTRAST * PADDLE_CONTRAST),
        (scenes.distractors, SNAKE_CONTRAST),
    ):
        for dashes in chains.reshape(count, -1, 3).transpose(1, 0, 2):
            shown = dashes[:, 2] >= 0
            lines = paddles.LINES[dashes[shown, 2]].reshape(-1, len(SQUARE)) / 255 * contrast
            _paint(canvas, np.flatnonzero(shown), dashes[shown, :2], lines)
    disc = paddles.MARKER.ravel() / 255
    for center in scenes.discs.transpose(1, 0, 2):
        _paint(canvas, np.arange(count), center, disc)
    window = canvas[:, WINDOW]
    stretched = window / window.max(1, keepdims=True) * 255
    return np.floor(stretched + 0.5).astype(np.uint8).reshape(-1, SIZE, SIZE)


def _paint(canvas: np.ndarray, rows: np.ndarray, centers: np.ndarray, patch: np.ndarray) -> None:
    places = rows[:, None], flat(centers)[:, None] + SQUARE
    canvas[places] = np.maximum(canvas[places], patch)

"""The dashes of Pathfinder by direction: their pictures, the room they take, how chains go on.

Points are (y, x) pixels, angles in radians from +x to +y. Directions are numbered: first the whole
degrees from -180 on, in which a chain begins; then those from a pivot to the pixels around it, in
which it goes on; last the same turned round, in which such dashes are drawn, from their far end.

Source: Linsley et al. 2018, with the sizes of LRA's Pathfinder32 (Tay et al. 2021).
"""

import math

import numpy as np
from PIL import Image, ImageDraw

LENGTH = 2
MARGIN = 1
CONTINUITY = 1.0
_SCALE = 2
_LINE_WIDTH = 1
"""Thickness 0.5, at the scale of drawing."""
_MARKER_RADIUS = 1.5
REACH = LENGTH + 1 + MARGIN
"""Half the side of the square around the pixel that a dash is drawn from."""
_OVERLAP = round(1.8 * 255)
"""Two dashes overlap where what they occupy, soft at the rim, adds up to this."""


def translate(angle: float, distance: float) -> tuple[int, int]:
    """Offset (dy, dx), rounded up; what floating point adds to a whole number is no reason to."""
    return (
        math.ceil(distance * math.sin(angle) - 1e-9),
        math.ceil(distance * math.cos(angle) - 1e-9),
    )


def _circle() -> np.ndarray:
    """Pixels one radius from a pivot, cut to whole numbers: offsets (K, 2)."""
    radius = LENGTH + MARGIN
    angles = np.arange(0, 2 * math.pi, 1 / radius)
    points = radius * np.stack([np.sin(angles), np.cos(angles)], axis=1)
    return np.unique(np.floor(points + 1e-9).astype(np.int64), axis=0)


def widen(image: np.ndarray, radius: int) -> np.ndarray:
    """Largest value within `radius` of each pixel of (H, W)."""
    height, width = image.shape
    padded = np.pad(image, radius)
    return np.max(
        [padded[dy : dy + height, dx : dx + width] for dy, dx in disc_offsets(radius) + radius],
        axis=0,
    )


def disc_offsets(radius: int) -> np.ndarray:
    """Offsets (dy, dx) of the pixels of a disc: (K, 2)."""
    square = np.argwhere(np.ones((2 * radius + 1,) * 2)) - radius
    return square[(square**2).sum(1) <= radius * radius]


def _draw(angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw a dash at the larger scale and shrink it.

    Returns:
        The line, and the room it takes with the margin: (2 REACH + 1, same) uint8 each.
    """
    side, center = 2 * REACH * _SCALE + 1, REACH * _SCALE
    dy, dx = translate(angle, LENGTH * _SCALE)
    image = Image.new("L", (side, side))
    line = [(center, center), (center + dx, center + dy)]
    ImageDraw.Draw(image).line(line, fill=255, width=_LINE_WIDTH)
    return _shrink(image), _shrink(Image.fromarray(widen(np.asarray(image), MARGIN * _SCALE)))


def _marker() -> np.ndarray:
    side, center = (2 * REACH + 1) * _SCALE, REACH * _SCALE
    y, x = np.ogrid[:side, :side]
    disc = (y - center) ** 2 + (x - center) ** 2 <= (_MARKER_RADIUS * _SCALE) ** 2
    return _shrink(Image.fromarray(disc.astype(np.uint8) * 255))


def _shrink(image: Image.Image) -> np.ndarray:
    side = 2 * REACH + 1
    return np.asarray(image.resize((side, side), Image.Resampling.LANCZOS))


def _cores() -> tuple[np.ndarray, np.ndarray]:
    """Where each dash may overlap others: offsets (D, C, 2), and what is too full there (D, C)."""
    found = [np.argwhere(room >= _OVERLAP - 255) for room in ROOMS]
    count = max(map(len, found))
    offsets = np.zeros((len(ROOMS), count, 2), np.int64)
    limits = np.full((len(ROOMS), count), 256)  # of the places that fill a row up
    for direction, pixels in enumerate(found):
        offsets[direction, : len(pixels)] = pixels - REACH
        limits[direction, : len(pixels)] = _OVERLAP - ROOMS[direction][tuple(pixels.T)].astype(int)
    return offsets, limits


CIRCLE = _circle()
"""Offsets from a pivot to the pixels where a dash may end: (K, 2)."""
DEGREES = 360
ONWARD = DEGREES + np.arange(len(CIRCLE))
"""Direction from a pivot to each pixel of `CIRCLE`."""
BACK = ONWARD + len(CIRCLE)
"""The same turned round."""
_HEADINGS = np.arctan2(CIRCLE[:, 0], CIRCLE[:, 1])
ANGLES = np.concatenate(
    [np.radians(np.arange(-180, 180)), _HEADINGS, _HEADINGS - np.copysign(math.pi, _HEADINGS)]
)
"""Angle of each direction: (D,)."""
LINES, ROOMS = (np.stack(part) for part in zip(*map(_draw, ANGLES.tolist()), strict=True))
"""Brightness of each dash and the room it takes: (D, 2 REACH + 1, same) uint8."""
MARKER = _marker()
"""A filled disc: (2 REACH + 1, same) uint8."""
CORES, LIMITS = _cores()
ENDS = np.array([translate(angle, LENGTH) for angle in ANGLES.tolist()])
"""Offset from the start of a dash to its end: (D, 2)."""
PIVOTS = ENDS + [translate(angle + math.pi, LENGTH + MARGIN) for angle in ANGLES.tolist()]
"""Offset from the start of a first dash to the pivot behind it: (D, 2)."""
STEPS = np.array([translate(angle, LENGTH + 2 * MARGIN) for angle in ANGLES.tolist()])
"""Offset from a pivot to the next one: (D, 2)."""
_TURNS = np.abs(ANGLES[:, None] - _HEADINGS)
WEIGHTS = (
    np.cos(np.minimum(np.minimum(_TURNS, 2 * math.pi - _TURNS) * CONTINUITY, math.pi / 2)) ** 2
)
"""How likely a chain of each direction goes on to each pixel of `CIRCLE`, if free: (D, K)."""

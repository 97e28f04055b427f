"""Which ends a contour of a Pathfinder scene joins, found from its dashes alone.

Independent of the generator: dashes come in no order and of no chain, each is placed by its own
geometry, and contours are followed one dash at a time from one end to the other.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Iterable

Point = tuple[int, int]
_LENGTH, _MARGIN = 2, 1
_RADIUS = _LENGTH + _MARGIN
_TOLERANCE = 1e-6


def contour_ends(
    dashes: Iterable[tuple[int, int, float]], tip: Point, *, length: int
) -> set[Point]:
    """Follow the contours that begin at a tip; there is one, unless it forks.

    Args:
        dashes: y and x of the pixel that a dash is drawn from, and its angle.
        tip: (y, x) of the pixel that the first dash is drawn from.
        length: dashes of a whole contour.

    Returns:
        The far ends (y, x) of all that have so many dashes.
    """
    dashes = list(dashes)
    after: dict[Point, list[tuple[Point, float]]] = defaultdict(list)
    for y, x, angle in dashes:
        for dy, dx in _offsets(angle + math.pi):
            after[y - dy, x - dx].append(((y, x), angle + math.pi))
    # The first dash is drawn from its tip forward, all others from their far ends back.
    found = {
        (_next_pivot(_pivot_behind(tip, angle), angle), tip)
        for y, x, angle in dashes
        if (y, x) == tip
    }
    for _ in range(length - 1):
        found = {
            (_next_pivot(pivot, heading), end)
            for pivot, _ in found
            for end, heading in after[pivot]
        }
    return {end for _, end in found}


@functools.cache
def _offsets(heading: float) -> list[Point]:
    """Where, from its pivot, a dash of this heading may end."""
    found: set[Point] = set()
    for step in range(math.ceil(2 * math.pi * _RADIUS)):
        y, x = _RADIUS * math.sin(step / _RADIUS), _RADIUS * math.cos(step / _RADIUS)
        dy, dx = math.floor(y + _TOLERANCE), math.floor(x + _TOLERANCE)
        if _turn(math.atan2(dy, dx), heading) < _TOLERANCE:
            found.add((dy, dx))
    return sorted(found)


def _pivot_behind(tip: Point, angle: float) -> Point:
    return _move(_move(tip, angle, _LENGTH), angle + math.pi, _RADIUS)


def _next_pivot(pivot: Point, heading: float) -> Point:
    return _move(pivot, heading, _LENGTH + 2 * _MARGIN)


def _move(point: Point, angle: float, distance: float) -> Point:
    y, x = point[0] + distance * math.sin(angle), point[1] + distance * math.cos(angle)
    return math.ceil(y - _TOLERANCE), math.ceil(x - _TOLERANCE)


def _turn(one: float, other: float) -> float:
    """The angle between two directions, in [0, pi]."""
    return abs((one - other + math.pi) % (2 * math.pi) - math.pi)

"""Small charts of lines, side by side, as SVG: text that is the same on every machine."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

_COLUMNS, _WIDTH, _HEIGHT = 3, 320, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 30, 38
_LEGEND_ROW = 18
# Okabe and Ito's palette, which the color-blind can tell apart.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#777777")
_TICKS, _LABELS = 5, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a panel."""

    group: str  # lines of one group have one color, and one entry of the legend
    values: Sequence[float | None]  # of the first places of the panel; None leaves a gap
    band: tuple[Sequence[float | None], Sequence[float | None]] | None = None  # shaded around it
    dashed: bool = False  # whether it is a bound and no figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart."""

    title: str
    x_title: str  # what the places are
    x: Sequence[float]  # the places, ascending, at least one
    lines: Sequence[Line]  # at least one with a value
    log: bool = False  # whether both axes are logarithmic


def draw(panels: Sequence[Panel], *, groups: Sequence[str]) -> str:
    """All panels as one picture, with a legend of the groups in the order of their colors."""
    rows = math.ceil(len(panels) / _COLUMNS)
    width = _WIDTH * min(_COLUMNS, len(panels))
    height = rows * _HEIGHT + _LEGEND_ROW * len(groups) + 10
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(groups)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for number, panel in enumerate(panels):
        row, column = divmod(number, _COLUMNS)
        parts.append(f'<g transform="translate({column * _WIDTH},{row * _HEIGHT})">')
        parts += [*_panel(panel, colors), "</g>"]
    for number, (name, color) in enumerate(colors.items()):
        y = rows * _HEIGHT + _LEGEND_ROW * number + 12
        parts.append(f'<rect x="{_LEFT}" y="{y - 6}" width="24" height="4" fill="{color}"/>')
        parts.append(text(_LEFT + 32, y, name, "start"))
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, colors: dict[str, str]) -> Iterator[str]:
    scaled = math.log10 if panel.log else float
    low, high = _range(panel.lines, scaled)
    first, span = scaled(panel.x[0]), scaled(panel.x[-1]) - scaled(panel.x[0])

    def across(x: float) -> float:
        """Where a place lies, in pixels from the left."""
        share = (scaled(x) - first) / span if span else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def up(y: float) -> float:
        """Where a value lies, in pixels from the top."""
        share = (scaled(y) - low) / (high - low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def points(ys: Sequence[float | None]) -> list[str]:
        """Coordinates "x,y" of the values that there are."""
        places = zip(panel.x, ys, strict=False)
        return [f"{across(x):.1f},{up(y):.1f}" for x, y in places if y is not None]

    yield text(_LEFT, 18, panel.title, "start", bold=True)
    for tick in _powers(low, high) if panel.log else _ticks(low, high):
        y = up(tick)
        yield f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>'
        yield text(_LEFT - 6, y + 4, f"{tick:g}", "end")
    for x in panel.x[:: math.ceil(len(panel.x) / _LABELS)]:
        yield text(across(x), _HEIGHT - _BOTTOM + 15, f"{x:g}", "middle")
    yield text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, panel.x_title, "middle")
    for line in panel.lines:
        yield from _line(line, points, colors[line.group])


def _line(
    line: Line, points: Callable[[Sequence[float | None]], list[str]], color: str
) -> Iterator[str]:
    if line.band is not None:
        lower, upper = map(points, line.band)
        outline = " ".join([*lower, *reversed(upper)])
        yield f'<polygon points="{outline}" fill="{color}" fill-opacity="0.12"/>'
    path, dash = points(line.values), ' stroke-dasharray="5 3"' if line.dashed else ""
    look = f'fill="none" stroke="{color}" stroke-width="1.5"{dash}'
    yield f'<polyline points="{" ".join(path)}" {look}/>'
    if not line.dashed:
        places = (point.split(",") for point in path)
        yield "".join(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{color}"/>' for x, y in places)


def _range(lines: Sequence[Line], scaled: Callable[[float], float]) -> tuple[float, float]:
    """What the axis shows: all values and bands, as they are scaled, with some room."""
    shown = (value for line in lines for end in (line.values, *(line.band or ())) for value in end)
    values = [scaled(value) for value in shown if value is not None]
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers inside of the axis, about `_TICKS` of them."""
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    numbers = range(math.ceil(low / step), math.floor(high / step) + 1)
    return [float(f"{number * step:.10g}") for number in numbers]


def _powers(low: float, high: float) -> list[float]:
    """The powers of ten between two exponents."""
    return [10.0**power for power in range(math.ceil(low), math.floor(high) + 1)]


def text(x: float, y: float, words: str, anchor: str, *, bold: bool = False) -> str:
    """A text of a picture, at a place in pixels."""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(words)}</text>'

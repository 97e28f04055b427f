"""Charts of a report as SVG without scripts: coloured by classes, so that they follow its theme."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from robustness.report.markup import Markup, element, join, named
from robustness.report.schema import Figure, ModelFigures
from robustness.report.sentences import at_budget, interval, percent

TONES = ("first", "second")
_WIDE, _NARROW = (880, 320), (380, 270)
_TOP, _RIGHT, _BOTTOM, _LEFT = 14, 26, 44, 46
_TICKS = 6
_PER_LETTER = 3.7  # half the width of a letter of 12 px: labels closer than that would overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of a curve: x, a share in [0, 1], its interval if any, and what to call it."""

    x: float
    share: float
    ci: tuple[float, float] | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line of a chart.

    Attributes:
        tone: "first" or "second", the model.
        points: ascending in x.
        thread: dotted and without marks, for what is only context.
        title: what is drawn, shown under the pointer.
    """

    tone: str
    points: Sequence[Point]
    thread: bool = False
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Curves over one axis.

    Attributes:
        title: what is drawn, for those who cannot see it.
        x_title: what the horizontal axis is.
        ticks: positions on the horizontal axis and their labels, ascending.
        curves: at least one.
        stretch: how x becomes a length.
    """

    title: str
    x_title: str
    ticks: Sequence[tuple[float, str]]
    curves: Sequence[Curve]
    stretch: Callable[[float], float] = float


def draw(chart: Chart) -> Markup:
    """The chart twice, for wide and for narrow screens; the style sheet shows one."""
    both = (_svg(chart, *_WIDE, "wide"), _svg(chart, *_NARROW, "narrow"))
    return element("div", *both, class_="plot")


def gauge(share: float, ci: tuple[float, float] | None, tone: str = "first") -> Markup:
    """A share on a scale from 0 to 1, with its interval as a whisker."""

    def at(value: float) -> str:
        return f"{5 + 110 * value:.1f}"

    rail = [_line(at(0), 7, at(1), 7, "rail")]
    rail += [_line(at(place), 4, at(place), 10, "rail") for place in (0, 0.5, 1)]
    whisker = None if ci is None else _line(at(ci[0]), 7, at(ci[1]), 7, "whisker")
    point = element("circle", class_="point", cx=at(share), cy=7, r="3.6")
    box = {"viewBox": "0 0 120 14", "width": 120, "height": 14, "aria_hidden": "true"}
    return element("svg", *rail, whisker, point, class_=f"gauge {tone}", **box)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    width: int
    height: int
    chart: Chart

    def x(self, value: float) -> float:
        first, last = (self.chart.stretch(self.chart.ticks[i][0]) for i in (0, -1))
        share = (self.chart.stretch(value) - first) / ((last - first) or 1)
        return _LEFT + share * (self.width - _LEFT - _RIGHT)

    def y(self, share: float) -> float:
        return _TOP + (1 - share) * (self.height - _TOP - _BOTTOM)

    def path(self, places: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in places)


def _svg(chart: Chart, width: int, height: int, kind: str) -> Markup:
    scale = _Scale(width=width, height=height, chart=chart)
    parts = [*_axes(scale), *(part for curve in chart.curves for part in _curve(scale, curve))]
    title = element("title", chart.title)
    box = {"viewBox": f"0 0 {width} {height}", "role": "img", "aria_label": chart.title}
    return element("svg", title, *parts, class_=kind, **box)


def _axes(scale: _Scale) -> Iterator[Markup]:
    right = scale.width - _RIGHT
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = f"{scale.y(share):.1f}"
        yield _line(_LEFT, y, right, y, "grid")
        yield _text(_LEFT - 8, scale.y(share) + 4, f"{100 * share:.0f}", "end", "tick")
    clear = -1e9
    bottom = scale.y(0)
    for value, label in scale.chart.ticks:
        x, room = scale.x(value), len(label) * _PER_LETTER
        yield _line(f"{x:.1f}", f"{bottom:.1f}", f"{x:.1f}", f"{bottom + 5:.1f}", "axis")
        if x - room > clear:
            clear = x + room + 4
            yield _text(x, bottom + 19, label, "middle", "tick")
    yield _text(right, scale.height - 5, scale.chart.x_title, "end", "axis-name")


def _curve(scale: _Scale, curve: Curve) -> Iterator[Markup]:
    places = [(point.x, point.share) for point in curve.points]
    if curve.thread:
        title = element("title", curve.title)
        yield element("path", title, class_=f"thread {curve.tone}", d=scale.path(places))
        return
    bounded = [(point.x, point.ci) for point in curve.points if point.ci is not None]
    if bounded:
        outline = [(x, ci[1]) for x, ci in bounded] + [(x, ci[0]) for x, ci in reversed(bounded)]
        yield element("path", class_=f"band {curve.tone}", d=scale.path(outline) + "Z")
    yield element("path", class_=f"curve {curve.tone}", d=scale.path(places))
    yield from (_mark(scale, curve.tone, point) for point in curve.points if point.note)


def _mark(scale: _Scale, tone: str, point: Point) -> Markup:
    x, y, note = scale.x(point.x), scale.y(point.share), element("title", point.note)
    if tone == "first":
        return element("circle", note, class_="dot first", cx=f"{x:.1f}", cy=f"{y:.1f}", r=4)
    box = {"x": f"{x - 3.6:.1f}", "y": f"{y - 3.6:.1f}", "width": "7.2", "height": "7.2"}
    return element("rect", note, class_="dot second", **box)


def _line(x1: float | str, y1: float | str, x2: float | str, y2: float | str, kind: str) -> Markup:
    return element("line", class_=kind, x1=str(x1), y1=str(y1), x2=str(x2), y2=str(y2))


def _text(x: float, y: float, text: str, anchor: str, kind: str) -> Markup:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text_anchor": anchor}
    return element("text", text, class_=kind, **place)


def heat(share: float | None, text: str) -> Markup:
    """A cell of a heat map: eleven shades, from none to all."""
    if share is None:
        return element("td", "–", class_="heat empty")
    return element("td", text, class_=f"heat h{round(10 * share)}")


def legend(entries: Sequence[tuple[str, Markup | str]], note: str) -> Markup:
    """What the tones of a chart are.

    Args:
        entries: tone and name of each model.
        note: what lines and bands are.
    """
    keys = [element("span", name, class_=f"key {tone}") for tone, name in entries]
    return element("figcaption", join(*keys), element("span", note), class_="legend")


def attack_curves(models: Sequence[ModelFigures], quantity: str) -> Iterator[Markup]:
    """One chart for each kind of budget: the worst case in bold, each attack alone dotted."""
    kinds = dict.fromkeys(_kind(model, name) for model in models for name in model.worst)
    for kind in kinds:
        curves = [c for i, model in enumerate(models) for c in _model_curves(model, TONES[i], kind)]
        spelled = {a.eps_value: a.eps for m in models for a in m.attacks if a.kind == kind}
        chart = Chart(
            title=f"{quantity} over the budget of the attack; the tables hold the same figures",
            x_title=_AXES.get(kind, f"eps ({kind.lower()})"),
            ticks=[(0.0, "clean"), *sorted(spelled.items())],
            curves=curves,
            stretch=_doubling if kind == "Linf" else float,
        )
        threads = " · dotted: each attack alone" if any(c.thread for c in curves) else ""
        yield _figure(chart, models, f"{quantity}, %", f"worst attack, 95 % interval{threads}")


_AXES = {
    "Linf": "eps (l∞), on a logarithmic scale",
    "L2": "eps (l2)",
    "rate": "share of the words that are replaced",
    "edits": "edits of a text",
}


def minimal_curves(models: Sequence[ModelFigures], quantity: str) -> Iterator[Markup]:
    """Accuracy at every radius at once, from the nearest adversarial inputs that were found."""
    norms = dict.fromkeys(found.norm for model in models for found in model.minimal)
    for norm in norms:
        curves = [
            Curve(
                tone=TONES[i],
                points=[Point(x=x, share=y) for x, y in zip(one.eps, one.accuracy, strict=True)],
            )
            for i, model in enumerate(models)
            for one in model.minimal
            if one.norm == norm
        ]
        chart = Chart(
            title=f"{quantity} over every radius",
            x_title="distance (l∞)" if norm == "Linf" else "distance (l2)",
            ticks=_round_ticks(curves),
            curves=curves,
        )
        yield _figure(chart, models, f"{quantity}, %", "farther away than the nearest success")


def certificate_curves(models: Sequence[ModelFigures]) -> Iterator[Markup]:
    """Certified accuracy over the radius, one chart for each sigma."""
    for sigma in [one.sigma for one in models[0].certificates]:
        curves = [
            Curve(
                tone=TONES[i],
                points=[Point(x=p.radius, share=p.share, ci=p.ci) for p in one.curve],
            )
            for i, model in enumerate(models)
            for one in model.certificates
            if one.sigma == sigma
        ]
        chart = Chart(
            title=f"certified accuracy over the radius at sigma {sigma}",
            x_title="radius (l2)",
            ticks=_round_ticks(curves),
            curves=curves,
        )
        yield _figure(chart, models, f"Provably correct at sigma {sigma}, %", "95 % interval")


def _figure(chart: Chart, models: Sequence[ModelFigures], quantity: str, note: str) -> Markup:
    keys = [(TONES[i], named(model.name)) for i, model in enumerate(models)]
    title = element("p", quantity, class_="axis-title")
    return element("figure", title, draw(chart), legend(keys, note), class_="curve-figure")


def _model_curves(model: ModelFigures, tone: str, kind: str) -> Iterator[Curve]:
    clean = _point(0.0, "clean", model.clean, model.samples)
    own = [attack for attack in model.attacks if attack.kind == kind]
    titles = dict.fromkeys(attack.title for attack in own)
    for title in titles if len(titles) > 1 else ():
        points = sorted((a.eps_value, a.robust.top1) for a in own if a.title == title)
        if len(points) > 1:
            dotted = [clean, *(Point(x=x, share=y) for x, y in points)]
            yield Curve(tone=tone, points=dotted, thread=True, title=title)
    values = {attack.budget: (attack.eps_value, attack.eps) for attack in own}
    worst = [
        _point(*values[name], figure, model.samples)
        for name, figure in model.worst.items()
        if name in values
    ]
    yield Curve(tone=tone, points=[clean, *worst])


def _point(x: float, name: str, figure: Figure, samples: int) -> Point:
    note = f"{name}: {percent(figure.top1, samples)} ({interval(figure.ci, samples)})"
    return Point(x=x, share=figure.top1, ci=figure.ci, note=note)


def _kind(model: ModelFigures, budget: str) -> str:
    return at_budget(model, budget).kind


def _doubling(eps: float) -> float:
    """Doubling eps moves a point by about one step, and eps = 0 still has its place."""
    return math.log2(1 + 255 * eps)


def _round_ticks(curves: Sequence[Curve]) -> list[tuple[float, str]]:
    """Round numbers from 0 to the last point."""
    last = max((point.x for curve in curves for point in curve.points), default=0.0) or 1.0
    power = 10.0 ** math.floor(math.log10(last / _TICKS))
    step = next(f * power for f in (1, 2, 5, 10) if f * power * _TICKS >= last)
    count = math.ceil(last / step - 1e-9)
    return [(number * step, f"{number * step:.6g}") for number in range(count + 1)]

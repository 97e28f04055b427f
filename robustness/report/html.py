"""`report.html`: one file for a manager's minute and an expert's ten, without scripts.

Everything is inside: style and pictures too. Nothing is asked from anywhere, and the page says so
to the browser itself by a content security policy. Whatever a stranger named is escaped.
"""

import base64
import dataclasses
import hashlib
import json
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from core.percent import hundredths
from data.images import to_png
from robustness.attacks.base import NORM_NAMES
from robustness.report import sentences
from robustness.report.exhibits import Example, Pixels, Texts
from robustness.report.schema import FILE as REPORT
from robustness.report.schema import ClassFigures, Figure, ModelFigures, Report, plain
from robustness.report.sentences import at_budget, at_largest, interval, percent
from robustness.spec import ATTACKS

FILE = "report.html"
_HERE = Path(__file__).parent
_TONES = ("first", "second")  # of the models
_CLASSES = 40  # rows of the heat map: those of most classes are what an expert wants
_QUANTITIES = {
    "accuracy": "Classified correctly",
    "stability": "Predictions kept",
    "pixel accuracy": "Pixels classified correctly",
    "token accuracy": "Next tokens predicted",
}
_TOP, _RIGHT, _BOTTOM, _LEFT = 14, 26, 44, 46
_TICKS = 6
_PER_LETTER = 3.7  # half the width of a letter of 12 px: labels closer than that would overlap


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        autoescape=True,
        finalize=lambda value: plain(value) if type(value) is str else value,
        loader=FileSystemLoader(_HERE),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"percent": percent, "severity": "severity {}".format}
    said = ("at_budget", "chance", "count", "interval", "lines", "measured", "p_value")
    said += ("percent", "signed")
    environment.globals |= {name: getattr(sentences, name) for name in said}
    environment.globals |= {"corrupted": _corrupted, "readings_of": _readings, "whole": _whole}
    environment.globals |= {"perplexities": _perplexities}
    environment.globals |= {"picture": _picture, "round": round, "weakest": _weakest}
    return environment.get_template("report.html.j2")


def render(report: Report, exhibits: Sequence[tuple[Example, Pixels | Texts | None]] = ()) -> str:
    """The whole page.

    Args:
        report: what is shown.
        exhibits: samples on which the evaluated model was misled, or barely held.
    """
    models, ranks = report.summary.models, [k for k in report.summary.top_k if k > 1]
    ends = sentences.ends(report.spec)
    style = (_HERE / "report.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    quantity = _QUANTITIES[report.summary.metric]
    return _template().render(
        report=report,
        summary=report.summary,
        models=models,
        toned=list(zip(_TONES, models, strict=False)),
        labels=report.data.labels,
        exhibits=exhibits,
        titles={name: kind.info.title for name, kind in ATTACKS.items()},
        curves=[*_attack_curves(models, quantity, ends), *_minimal_curves(models, quantity)],
        certificates=list(_certificate_curves(models, ends)),
        ends=ends,
        abstained=", ".join(_abstained(models)),
        ranks=ranks,
        tops=[f"top {k}" for k in ranks],
        most_classes=_CLASSES,
        facts={
            "data": report.data.digest,
            "code": report.code,
            **{model.name: model.digest for model in models},
            **report.environment,
        },
        commands=_commands(report),
        spec=json.dumps(report.spec.model_dump(mode="json", exclude_none=True), indent=1),
        style=Markup(style),  # our own file
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'",
    )


def _readings(model: ModelFigures) -> Iterator[tuple[Any, ...]]:
    """The few numbers that matter: name, what it is, share and interval."""
    names = ("clean", "robust") if model.clean.perplexity is None else ("tokens right",) * 2
    yield names[0], "before any attack", model.clean.top1, model.clean.ci
    if model.largest is not None:
        worst = f"worst attack {at_largest(model)}"
        yield names[1], worst, model.largest.top1, model.largest.ci
    if model.corrupted is not None:
        yield "corrupted", "mean over corruptions", model.corrupted.top1, model.corrupted.ci
    if model.proved is not None:
        yield "proved", sentences.at_proved(model), model.proved.top1, model.proved.ci
    for one in model.certificates:
        first, about = one.curve[0], f"randomized smoothing, sigma {one.sigma}"
        yield "provable", about, first.share, first.ci


def _perplexities(model: ModelFigures) -> Iterator[tuple[str, float, tuple[float, float]]]:
    """Of a language model: name, value and interval."""
    clean, largest = model.clean, model.largest
    if clean.perplexity is not None and clean.perplexity_ci is not None:
        yield "perplexity", clean.perplexity, clean.perplexity_ci
    if largest is not None and largest.ratio is not None and largest.ratio_ci is not None:
        yield "ratio", largest.ratio, largest.ratio_ci


def _weakest(model: ModelFigures) -> list[ClassFigures]:
    def shares(one: ClassFigures) -> tuple[float, ...]:
        """Of the largest budget first."""
        return (*reversed(one.worst.values()), one.clean, one.index)

    return sorted(model.classes, key=shares)


def _corrupted(model: ModelFigures) -> tuple[list[int], list[tuple[str, dict[int, float], float]]]:
    """Severities; by corruption, the worst first, its shares and their mean."""
    found: dict[str, dict[int, float]] = {}
    for one in model.corruptions:
        found.setdefault(one.name, {})[one.severity] = one.accuracy.top1
    rows = [(name, own, sum(own.values()) / len(own)) for name, own in found.items()]
    severities = sorted({one.severity for one in model.corruptions})
    return severities, sorted(rows, key=lambda row: row[2])


def _abstained(models: Sequence[ModelFigures]) -> Iterator[str]:
    for model in models:
        for one in model.certificates:
            yield f"{percent(one.abstained, model.samples)} ({model.name}, sigma {one.sigma})"


def _picture(pixels: np.ndarray) -> str:
    return "data:image/png;base64," + base64.b64encode(to_png(pixels.clip(0, 1))).decode()


def _whole(share: float) -> str:
    return hundredths(share, 0)


def _commands(report: Report) -> str:
    """What to type in a shell; folders and data are named by their roles, paths are nobody's."""
    first, *others = report.summary.models
    words, asked, endpoint = ["./assay", "evaluate"], list[str](), first.endpoint
    if endpoint is None:
        words += ["--artifact", f"artifacts/{first.name}"]
    else:
        asked = ["--target", endpoint.url, "--model", endpoint.model]
        asked += ["--mapping", "MAPPING"] if endpoint.protocol == "a mapping" else []
        words += [*asked, "--shows", endpoint.shows]
        if endpoint.surrogate is not None:
            words += ["--surrogate", f"artifacts/{endpoint.surrogate['name']}"]
    for other in others:
        words += ["--compare", f"artifacts/{other.name}"]
    words += ["--data", "DATA", "--spec", "spec.json", "--output", "OUTPUT"]
    evaluate = " ".join(map(shlex.quote, words)).replace(" --data", " \\\n    --data")
    about = f"# spec.json: the spec below; DATA: the {report.data.samples:,} {report.data.kind}s"
    verify = " ".join(map(shlex.quote, ["./assay", "verify", f"OUTPUT/{REPORT}", *asked]))
    return "\n".join([about, evaluate, verify])


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
        title: shown under the pointer; only of what is dotted, without marks, as context.
    """

    tone: str
    points: Sequence[Point]
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Curves over one axis, and where they lie in a picture; the template draws them as SVG.

    Attributes:
        title: what is drawn, for those who cannot see it.
        quantity: what the vertical axis is.
        note: what lines and bands are.
        x_title: what the horizontal axis is.
        ticks: positions on the horizontal axis and their labels, ascending.
        curves: at least one.
        stretch: how x becomes a length.
        width: of the picture, as its height.
    """

    title: str
    quantity: str
    note: str
    x_title: str
    ticks: Sequence[tuple[float, str]]
    curves: Sequence[Curve]
    stretch: Callable[[float], float] = float
    width: int = 0
    height: int = 0
    left: int = _LEFT

    @property
    def right(self) -> int:
        """Where the grid ends."""
        return self.width - _RIGHT

    def sized(self, width: int, height: int) -> "Chart":
        """The same for a screen of another width; the style sheet shows one."""
        return dataclasses.replace(self, width=width, height=height)

    def x(self, value: float) -> float:
        """Where a value lies."""
        first, last = (self.stretch(self.ticks[i][0]) for i in (0, -1))
        share = (self.stretch(value) - first) / ((last - first) or 1)
        return _LEFT + share * (self.width - _LEFT - _RIGHT)

    def y(self, share: float) -> float:
        """Where a share lies."""
        return _TOP + (1 - share) * (self.height - _TOP - _BOTTOM)

    def line(self, curve: Curve) -> str:
        """The path of a curve."""
        return self._path((point.x, point.share) for point in curve.points)

    def band(self, curve: Curve) -> str:
        """The outline of a curve's intervals; empty where it has none."""
        known = [(point.x, point.ci) for point in curve.points if point.ci is not None]
        outline = [(x, ci[1]) for x, ci in known] + [(x, ci[0]) for x, ci in reversed(known)]
        return self._path(outline) + "Z" if known else ""

    def labels(self) -> Iterator[tuple[float, str]]:
        """The ticks' places and labels, without those that would overlap the one before."""
        clear = -math.inf
        for value, label in self.ticks:
            x, room = self.x(value), len(label) * _PER_LETTER
            yield x, label if x - room > clear else ""
            clear = max(clear, x + room + 4) if x - room > clear else clear

    def _path(self, places: Iterable[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in places)


_AXES = {
    "Linf": "eps (l∞), on a logarithmic scale",
    "L0": "changed pixels",
    "patch": "side of the patch in pixels",
    "rate": "share of the words that are replaced",
    "edits": "edits of a text",
}


def _attack_curves(models: Sequence[ModelFigures], quantity: str, ends: str) -> Iterator[Chart]:
    """One chart for each kind of budget: the worst case in bold, each attack alone dotted."""
    kinds = dict.fromkeys(at_budget(model, name).kind for model in models for name in model.worst)
    for kind in kinds:
        toned = zip(_TONES, models, strict=False)
        curves = [curve for tone, model in toned for curve in _model_curves(model, tone, kind)]
        spelled = {a.eps_value: a.eps for m in models for a in m.attacks if a.kind == kind}
        dotted = " · dotted: each attack alone" if any(curve.title for curve in curves) else ""
        yield Chart(
            title=f"{quantity} over the budget of the attack; the tables hold the same figures",
            quantity=f"{quantity}, %",
            note=f"worst attack, {ends}{dotted}",
            x_title=_AXES.get(kind, f"eps ({NORM_NAMES.get(kind, kind)})"),
            ticks=[(0.0, "clean"), *sorted(spelled.items())],
            curves=curves,
            # Doubling eps moves a point by about one step, and eps = 0 still has its place.
            stretch=(lambda eps: math.log2(1 + 255 * eps)) if kind == "Linf" else float,
        )


def _model_curves(model: ModelFigures, tone: str, kind: str) -> Iterator[Curve]:
    clean = _point(0.0, "clean", model.clean, model.samples)
    own = [attack for attack in model.attacks if attack.kind == kind]
    titles = dict.fromkeys(attack.title for attack in own)
    for title in titles if len(titles) > 1 else ():
        points = sorted((a.eps_value, a.robust.top1) for a in own if a.title == title)
        if len(points) > 1:
            dotted = [clean, *(Point(x=x, share=y) for x, y in points)]
            yield Curve(tone=tone, points=dotted, title=title)
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


def _minimal_curves(models: Sequence[ModelFigures], quantity: str) -> Iterator[Chart]:
    """Accuracy at every radius at once, from the nearest adversarial inputs that were found."""
    for norm in dict.fromkeys(found.norm for model in models for found in model.minimal):
        yield _chart(
            f"{quantity} over every radius",
            f"{quantity}, %",
            "farther away than the nearest success",
            f"distance ({NORM_NAMES[norm]})",
            [
                Curve(tone=tone, points=[Point(x=x, share=y) for x, y in zip(*axes, strict=True)])
                for tone, model in zip(_TONES, models, strict=False)
                for axes in [(one.eps, one.accuracy) for one in model.minimal if one.norm == norm]
            ],
        )


def _certificate_curves(models: Sequence[ModelFigures], ends: str) -> Iterator[Chart]:
    """Certified accuracy over the radius, one chart for each sigma."""
    for sigma in [one.sigma for one in models[0].certificates]:
        yield _chart(
            f"certified accuracy over the radius at sigma {sigma}",
            f"Provably correct at sigma {sigma}, %",
            ends,
            "radius (l2)",
            [
                Curve(tone=tone, points=[Point(x=p.radius, share=p.share, ci=p.ci) for p in curve])
                for tone, model in zip(_TONES, models, strict=False)
                for curve in [one.curve for one in model.certificates if one.sigma == sigma]
            ],
        )


def _chart(title: str, quantity: str, note: str, x_title: str, curves: list[Curve]) -> Chart:
    """A chart with round numbers from 0 to the last point on its horizontal axis."""
    last = max((point.x for curve in curves for point in curve.points), default=0.0) or 1.0
    power = 10.0 ** math.floor(math.log10(last / _TICKS))
    step = next(f * power for f in (1, 2, 5, 10) if f * power * _TICKS >= last)
    count = math.ceil(last / step - 1e-9)
    ticks = [(number * step, f"{number * step:.6g}") for number in range(count + 1)]
    return Chart(
        title=title, quantity=quantity, note=note, x_title=x_title, ticks=ticks, curves=curves
    )

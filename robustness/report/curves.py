"""The curves of a report's page: accuracy over the budget of attacks, of distances, of proofs."""

import math
from collections.abc import Iterator, Sequence

from robustness.report.charts import TONES, Chart, Curve, Point, draw, legend
from robustness.report.figures import Figure, ModelFigures
from robustness.report.markup import Markup, element, named
from robustness.report.sentences import at_budget, budget_kind, interval, percent

_TICKS = 6


def attack_curves(models: Sequence[ModelFigures], quantity: str) -> Iterator[Markup]:
    """One chart for each kind of budget: the worst case in bold, each attack alone as a thread."""
    kinds = dict.fromkeys(_kind(model, name) for model in models for name in model.worst)
    for kind in kinds:
        curves = [c for i, model in enumerate(models) for c in _model_curves(model, TONES[i], kind)]
        spelled = {
            a.eps_value: a.eps for m in models for a in m.attacks if _kind(m, a.budget) == kind
        }
        chart = Chart(
            title=f"{quantity} over the budget of the attack; the tables hold the same figures",
            x_title=_AXES[kind],
            ticks=[(0.0, "clean"), *sorted(spelled.items())],
            curves=curves,
            stretch=_doubling if kind == "Linf" else float,
        )
        threads = " · dotted: each attack alone" if any(c.thread for c in curves) else ""
        yield _figure(chart, models, f"{quantity}, %", f"worst attack, 95 % interval{threads}")


_AXES = {
    "Linf": "eps (l∞), on a logarithmic scale",
    "L2": "eps (l2)",
    "rate": "share of the words that are swapped",
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
        yield _figure(chart, models, f"{quantity}, %", "further away than the nearest success")


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
        yield _figure(chart, models, f"Provably right at sigma {sigma}, %", "95 % interval")


def _figure(chart: Chart, models: Sequence[ModelFigures], quantity: str, note: str) -> Markup:
    keys = [(TONES[i], named(model.name)) for i, model in enumerate(models)]
    title = element("p", quantity, class_="axis-title")
    return element("figure", title, draw(chart), legend(keys, note), class_="curve-figure")


def _model_curves(model: ModelFigures, tone: str, kind: str) -> Iterator[Curve]:
    clean = _point(0.0, "clean", model.clean, model.samples)
    own = [attack for attack in model.attacks if _kind(model, attack.budget) == kind]
    names = dict.fromkeys(attack.name for attack in own)
    if len(names) > 1:
        for name in names:
            points = sorted((a.eps_value, a.robust.top1) for a in own if a.name == name)
            if len(points) > 1:
                threaded = [clean, *(Point(x=x, share=y) for x, y in points)]
                yield Curve(tone=tone, points=threaded, thread=True)
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
    return budget_kind(at_budget(model, budget))


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

"""The tables of a report's page."""

from collections.abc import Sequence

from robustness.report.charts import TONES, gauge, heat
from robustness.report.markup import Child, Markup, element, join, named
from robustness.report.schema import ClassFigures, Comparison, Figure, ModelFigures, Pair
from robustness.report.sentences import at_budget, interval, p_value, percent

_CLASSES = 40  # rows of the heat map: those of most classes are what an expert wants


def table(
    head: Sequence[Child], rows: Sequence[Markup], caption: Child = None, *, heat_map: bool = False
) -> Markup:
    """A table that scrolls by itself where the screen is narrow."""
    cells = (element("th", name, scope="col") for name in head)
    body = element(
        "table",
        None if caption is None else element("caption", caption),
        element("thead", element("tr", *cells)),
        element("tbody", *rows),
        class_="figures heat-map" if heat_map else "figures",
    )
    return element("div", body, class_="scroll", tabindex="0", role="region", aria_label="table")


def attacks(model: ModelFigures, position: int, metric: str, top_k: Sequence[int]) -> Markup:
    """Every attack on one model at every point, and the worst case of each budget."""
    tone = TONES[position]
    ranks = [k for k in top_k if k > 1]
    kept = "keeps its prediction" if metric == "stability" else "still correct"
    in_8bit = any(attack.confirmed_8bit is not None for attack in model.attacks)
    head = ["attack", "budget", kept, "95 % interval", *(f"top {k}" for k in ranks), "as served"]
    rows = [_row("none", "", model.clean, model.samples, ranks, [""] * (1 + in_8bit), tone)]
    for one in model.attacks:
        again = [one.confirmed, *([one.confirmed_8bit] if in_8bit else [])]
        shares = [percent(share, model.samples) for share in again]
        rows.append(
            _row(one.title, one.description, one.robust, model.samples, ranks, shares, tone)
        )
    for name, figure in model.worst.items():
        place, blanks = at_budget(model, name).description, [""] * (1 + in_8bit)
        rows.append(_row("worst of all", place, figure, model.samples, ranks, blanks, tone))
    caption = join(
        element("span", named(model.name), class_=f"key {tone}"),
        element(
            "span",
            f"version {model.version} · {model.runtime}, {model.precision} · ",
            element("code", model.digest[:12], title=model.digest),
            class_="caption-detail",
        ),
    )
    return table([*head, *(["in 8 bit"] if in_8bit else [])], rows, caption)


def _row(
    name: str,
    budget: str,
    figure: Figure,
    samples: int,
    ranks: Sequence[int],
    again: Sequence[str],
    tone: str,
) -> Markup:
    kind = {"none": "clean", "worst of all": "worst"}.get(name)
    shares = [element("td", percent(figure.top_k[str(k)], samples)) for k in ranks]
    measure = join(element("b", percent(figure.top1, samples)), gauge(figure.top1, figure.ci, tone))
    return element(
        "tr",
        element("th", name, scope="row"),
        element("td", budget),
        element("td", element("span", measure, class_="measure")),
        element("td", interval(figure.ci, samples), class_="range"),
        *shares,
        *(element("td", share) for share in again),
        class_=kind,
    )


def classes(model: ModelFigures, labels: Sequence[str]) -> Markup:
    """The heat map: one class a row, the weakest first; clean and every budget as columns."""
    budgets = list(model.worst)
    weakest = sorted(model.classes, key=lambda one: (*reversed(_shares(one)), one.index))
    rows = [
        element(
            "tr",
            element("th", named(labels[one.index]), scope="row"),
            element("td", f"{one.samples:,}", class_="range"),
            *(heat(share, f"{100 * share:.0f}") for share in _shares(one)),
        )
        for one in weakest[:_CLASSES]
    ]
    more = len(weakest) - _CLASSES
    note = f"the {_CLASSES} weakest of {len(weakest)} classes" if more > 0 else None
    columns = [
        "class",
        "samples",
        "clean",
        *(at_budget(model, name).description for name in budgets),
    ]
    return table(columns, rows, note, heat_map=True)


def _shares(one: ClassFigures) -> list[float]:
    return [one.clean, *one.worst.values()]


def corruptions(model: ModelFigures) -> Markup:
    """One corruption a row, the worst first; severities as columns."""
    severities = sorted({one.severity for one in model.corruptions})
    found: dict[str, dict[int, float]] = {}
    for one in model.corruptions:
        found.setdefault(one.name, {})[one.severity] = one.accuracy.top1
    means = {name: sum(own.values()) / len(own) for name, own in found.items()}
    rows = [
        element(
            "tr",
            element("th", name.replace("_", " "), scope="row"),
            *(_corruption_cell(own.get(severity)) for severity in severities),
            heat(means[name], f"{100 * means[name]:.0f}"),
        )
        for name, own in sorted(found.items(), key=lambda item: means[item[0]])
    ]
    return table(
        ["corruption", *(f"severity {k}" for k in severities), "mean"], rows, heat_map=True
    )


def _corruption_cell(share: float | None) -> Markup:
    return heat(share, "" if share is None else f"{100 * share:.0f}")


def comparison(other: Comparison, model: ModelFigures) -> Markup:
    """Both models on the same samples, clean and with every budget."""
    pairs = [("no attack", other.clean)]
    pairs += [(at_budget(model, name).description, pair) for name, pair in other.worst.items()]
    head = [
        "",
        named(other.first),
        named(other.second),
        "difference, points",
        "95 % interval",
        "only the first",
        "only the second",
        "McNemar test",
    ]
    return table(head, [_pair(where, pair, model.samples) for where, pair in pairs])


def _pair(where: str, pair: Pair, samples: int) -> Markup:
    low, high = (100 * end for end in pair.ci)
    return element(
        "tr",
        element("th", where, scope="row"),
        element("td", percent(pair.first, samples)),
        element("td", percent(pair.second, samples)),
        element("td", element("b", f"{100 * pair.difference:+.1f}")),
        element("td", f"{low:+.1f} to {high:+.1f}", class_="range"),
        element("td", str(pair.only_first)),
        element("td", str(pair.only_second)),
        element("td", p_value(pair)),
    )

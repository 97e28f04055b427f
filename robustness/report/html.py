"""`report.html`: one file for a manager's minute and an expert's ten, without scripts.

Everything is inside: style and pictures too. Nothing is asked from anywhere, and the page says so
to the browser itself by a content security policy. Whatever a stranger named is escaped.
"""

import base64
import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from robustness.report import charts, tables
from robustness.report.charts import TONES, gauge
from robustness.report.exhibits import Example, Pixels, Texts, exhibit
from robustness.report.markup import Markup, element, join, named
from robustness.report.schema import FILE as REPORT
from robustness.report.schema import Figure, ModelFigures, Report, Summary
from robustness.report.sentences import at_largest, interval, lines, percent
from robustness.spec import ATTACKS

FILE = "report.html"
_STYLE = Path(__file__).with_name("report.css")


def render(report: Report, exhibits: Sequence[tuple[Example, Pixels | Texts | None]] = ()) -> str:
    """The whole page.

    Args:
        report: what is shown.
        exhibits: samples on which the evaluated model was misled, or barely held.
    """
    summary, models = report.summary, report.summary.models
    sections = [
        _result(summary),
        _readings(summary),
        _warnings(summary),
        _curves(summary),
        _exhibits(report, exhibits),
        _attack_tables(summary),
        _comparison(summary),
        *(_classes(model, report.data.labels, models) for model in models),
        *(_corruptions(model, models) for model in models),
        _certificates(models),
        _reading_aid(report),
        _reproduce(report),
    ]
    shown = [one for one in sections if one is not None]
    body = element("main", _header(report), *shown, class_="report")
    return f"<!doctype html>\n{element('html', _head(models), element('body', body), lang='en')}\n"


@lru_cache(maxsize=1)
def _style() -> str:
    return _STYLE.read_text(encoding="utf-8")


def _head(models: Sequence[ModelFigures]) -> Markup:
    digest = base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'"
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", "Robustness of " + " and ".join(model.name for model in models)),
        Markup(f"<style>{_style()}</style>"),
    )


def _header(report: Report) -> Markup:
    first, *others = report.summary.models
    versus = [element("span", " vs. ", named(other.name), class_="versus") for other in others]
    data = report.data
    facts = f"{data.samples:,} {data.kind}s · {report.created[:16].replace('T', ' ')} UTC"
    return element(
        "header",
        element("p", "Robustness report", class_="crumb"),
        element("h1", named(first.name), *versus),
        element("p", facts, class_="facts"),
    )


def _result(summary: Summary) -> Markup:
    first, *others = lines(summary)
    return element(
        "section",
        element("p", first, class_="headline"),
        element("p", *_stamps(summary), class_="stamps"),
        *(element("p", line, class_="finding") for line in others),
        class_="result",
        aria_label="Result",
    )


def _stamps(summary: Summary) -> Iterator[Markup]:
    if summary.reliable:
        yield element("span", "✓ sanity checks passed", class_="stamp hold")
    else:
        yield element("span", "✗ unreliable: see the warnings", class_="stamp fall")
    gate = summary.gate
    if gate is not None:
        mark, tone = ("✓", "hold") if gate.passed else ("✗", "fall")
        yield element("span", f"{mark} {gate.finding}", class_=f"stamp {tone}")


def _readings(summary: Summary) -> Markup:
    """The few numbers that matter, for each model."""
    return element("div", *map(_reading_row, summary.models, TONES), class_="panel")


def _reading_row(model: ModelFigures, tone: str) -> Markup:
    readings = [_reading("clean", "before any attack", model.clean, model.samples, tone)]
    if model.largest is not None:
        note = f"worst attack {at_largest(model)}"
        readings.append(_reading("robust", note, model.largest, model.samples, tone))
    if model.mean_corruption_error is not None:
        share = 1 - model.mean_corruption_error
        readings.append(_share("corrupted", "mean over corruptions", share, model.samples, tone))
    for one in model.certificates[:1]:
        note = f"randomized smoothing, sigma {one.sigma}"
        readings.append(_share("provable", note, one.curve[0].share, model.samples, tone))
    for found in model.minimal[:1]:
        if found.median is not None:
            number = element("span", f"{found.median:.3g}", class_="reading-number")
            ball = "l∞" if found.norm == "Linf" else "l2"
            readings.append(_entry("distance", f"half are misled within ({ball})", number))
    name = element("p", named(model.name), class_=f"readings-name key {tone}")
    return element("section", name, element("dl", *readings), class_="readings")


def _reading(name: str, note: str, figure: Figure, samples: int, tone: str) -> Markup:
    number = element("span", percent(figure.top1, samples), class_="reading-number")
    whole = element("span", interval(figure.ci, samples), class_="range")
    return _entry(name, note, join(number, gauge(figure.top1, figure.ci, tone), whole))


def _share(name: str, note: str, share: float, samples: int, tone: str) -> Markup:
    number = element("span", percent(share, samples), class_="reading-number")
    return _entry(name, note, join(number, gauge(share, None, tone)))


def _entry(name: str, note: str, value: Markup) -> Markup:
    term = element("dt", name, element("small", note))
    return element("div", term, element("dd", value), class_="reading")


def _warnings(summary: Summary) -> Markup | None:
    if not summary.warnings:
        return None
    several = len(summary.models) > 1
    items = [
        element("li", join(element("b", named(w.model), ": ") if several else None, w.message))
        for w in summary.warnings
    ]
    title = element("h2", "Do not rely on these figures")
    return element("section", title, element("ul", *items), class_="warnings")


def _section(title: str, *children: Markup, hint: str = "", kind: str | None = None) -> Markup:
    about = element("p", hint, class_="hint") if hint else None
    return element("section", element("h2", title), about, *children, class_=kind, aria_label=title)


def _curves(summary: Summary) -> Markup | None:
    stable = summary.metric == "stability"
    quantity = "Predictions kept" if stable else "Classified correctly"
    drawn = list(charts.attack_curves(summary.models, quantity))
    drawn += charts.minimal_curves(summary.models, quantity)
    if not drawn:
        return None
    return _section("Accuracy over the size of the change", *drawn)


def _exhibits(
    report: Report, exhibits: Sequence[tuple[Example, Pixels | Texts | None]]
) -> Markup | None:
    if not exhibits:
        return None
    titles: Mapping[str, str] = {name: kind.info.title for name, kind in ATTACKS.items()}
    items = [
        exhibit(one, views, report.data.labels, titles.get(one.attack.part, one.attack.part))
        for one, views in exhibits
    ]
    hint = (
        f"On {report.summary.models[0].name}. Misled by the least change first, class by class; "
        "then those that held most narrowly. Every change is the one that was scored."
    )
    exhibits_list = element("ul", *items, class_="exhibits")
    return _section("Evidence", exhibits_list, hint=hint, kind="evidence")


def _attack_tables(summary: Summary) -> Markup | None:
    if not any(model.attacks for model in summary.models):
        return None
    parts = [
        tables.attacks(model, i, summary.metric, summary.top_k)
        for i, model in enumerate(summary.models)
    ]
    hint = (
        "As served: what remains when every adversarial input is scored again on the served model. "
        "In 8 bit: when the image is first written as a PNG and read by the public path."
    )
    return _section("Attacks", *parts, hint=hint)


def _comparison(summary: Summary) -> Markup | None:
    other = summary.comparison
    if other is None:
        return None
    hint = "The same samples and the same random draws for both."
    table = tables.comparison(other, summary.models[0])
    return _section("Comparison of the two models", table, hint=hint)


def _of(title: str, model: ModelFigures, models: Sequence[ModelFigures]) -> str:
    return f"{title}: {model.name}" if len(models) > 1 else title


def _classes(
    model: ModelFigures, labels: Sequence[str], models: Sequence[ModelFigures]
) -> Markup | None:
    if len(model.classes) < 2:
        return None
    hint = "Accuracy in percent, the weakest class first."
    return _section(_of("By class", model, models), tables.classes(model, labels), hint=hint)


def _corruptions(model: ModelFigures, models: Sequence[ModelFigures]) -> Markup | None:
    if not model.corruptions:
        return None
    error = percent(model.mean_corruption_error, model.samples)
    hint = f"Accuracy in percent, the worst corruption first. Mean error {error}."
    if model.mce is not None:
        ratio = percent(model.mce, model.samples)
        hint += f" mCE against {models[1].name}: {ratio}; below 100 % is better than it."
    return _section(_of("Common corruptions", model, models), tables.corruptions(model), hint=hint)


def _certificates(models: Sequence[ModelFigures]) -> Markup | None:
    drawn = list(charts.certificate_curves(models))
    if not drawn:
        return None
    silent = ", ".join(
        f"{percent(one.abstained, model.samples)} ({model.name}, sigma {one.sigma})"
        for model in models
        for one in model.certificates
    )
    hint = (
        "What no attack within the radius can change, of the smoothed model: the majority vote "
        f"over noisy copies of an image. It abstains on {silent}."
    )
    return _section("Certificates", *drawn, hint=hint)


def _reading_aid(report: Report) -> Markup:
    notes = element("ul", *(element("li", note) for note in report.notes), class_="notes")
    terms = [
        join(element("dt", name.replace("_", " ")), element("dd", text))
        for name, text in report.definitions.items()
    ]
    details = element("details", element("summary", "Definitions"), element("dl", *terms))
    return _section("How to read this", notes, details)


def _reproduce(report: Report) -> Markup:
    digests = {model.name: model.digest for model in report.summary.models}
    facts = {"data": report.data.digest, "code": report.code, **digests, **report.environment}
    rows = [
        join(element("dt", named(name)), element("dd", element("code", value)))
        for name, value in facts.items()
    ]
    spec = json.dumps(report.spec.model_dump(mode="json", exclude_none=True), indent=1)
    return _section(
        "How to reproduce",
        element("pre", element("code", _commands(report))),
        element(
            "details",
            element("summary", "Digests and environment"),
            element("dl", *rows, class_="facts-list"),
        ),
        element("details", element("summary", "The spec"), element("pre", element("code", spec))),
        hint="Same spec, seed and data on the same runtime, precision and kind of processor give "
        "the same bytes; verify scores the stored inputs again and confirms or refutes every flag.",
    )


def _commands(report: Report) -> str:
    """What to type in a shell; folders and data are named by their roles, paths are nobody's."""
    first, *others = report.summary.models
    words = ["python", "-m", "robustness", "evaluate", "--artifact", _folder(first.name)]
    for other in others:
        words += ["--compare", _folder(other.name)]
    words += ["--data", "DATA", "--spec", "spec.json", "--output", "OUTPUT"]
    evaluate = " ".join(map(shlex.quote, words)).replace(" --data", " \\\n    --data")
    about = f"# spec.json: the spec below; DATA: the {report.data.samples:,} {report.data.kind}s"
    return "\n".join([about, evaluate, f"python -m robustness verify OUTPUT/{REPORT}"])


def _folder(name: str) -> str:
    return f"artifacts/{name}"

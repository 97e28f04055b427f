"""`card.md`: the verdict as Markdown, to lie beside an artifact or in a pull request."""

import re
from collections.abc import Iterator, Sequence

from core.tables import markdown_table
from robustness.report.figures import Figure, ModelFigures
from robustness.report.markup import plain
from robustness.report.schema import Report
from robustness.report.sentences import (
    at_budget,
    doubtful_width,
    headline,
    interval,
    percent,
    rivalry,
    within,
)

FILE = "card.md"
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&])")


def render(report: Report) -> str:
    """A card with the verdict, every attack on every model, warnings, and what was judged."""
    summary, first = report.summary, report.summary.models[0]
    says = [
        headline(first, summary.metric, report.data.kind),
        doubtful_width(first, report.data.kind),
        rivalry(summary),
    ]
    parts = [f"# Robustness of {literal(first.name)} {literal(first.version)}"]
    parts += [literal(text) for text in says if text]
    parts += [
        f"**Unreliable** ({literal(w.model)}): {literal(w.message)}" for w in summary.warnings
    ]
    if summary.gate is not None:
        held = "held" if summary.gate.passed else "**failed**"
        parts.append(f"Gate `{summary.gate.text}`: {held} ({literal(summary.gate.reason)}).")
    for model in summary.models:
        parts += _model(model, summary.metric)
    parts += ["## Notes", "\n".join(f"- {literal(note)}" for note in report.notes)]
    data = report.data
    parts.append(
        f"{data.samples:,} {data.kind}s, sha256 `{data.digest}`; seed {report.seed}; "
        f"{report.created}."
    )
    return "\n\n".join(parts) + "\n"


def literal(text: str) -> str:
    """A text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(plain(text).split()))


def _model(model: ModelFigures, metric: str) -> Iterator[str]:
    yield f"## {literal(model.name)}"
    yield f"Digest `{model.digest}`, judged on {literal(model.runtime)} ({model.precision})."
    head = ("attack", "budget", metric, "95 % interval", "as served", "in 8 bit")
    rows = [("none", "", *_measured(model.clean, model.samples), "", "")]
    for one in model.attacks:
        served, in_8bit = (percent(s, model.samples) for s in (one.confirmed, one.confirmed_8bit))
        measured = _measured(one.robust, model.samples)
        rows.append((one.title, one.eps, *measured, served, in_8bit))
    for name, figure in model.worst.items():
        where = within(at_budget(model, name))
        rows.append(("worst of all", where, *_measured(figure, model.samples), "", ""))
    yield _table(head, rows)
    if model.mean_corruption_error is not None:
        yield f"Mean error under corruptions {percent(model.mean_corruption_error, model.samples)}."
    for one in model.certificates:
        share = percent(one.curve[0].share, model.samples)
        yield f"Smoothed with sigma {one.sigma}: provably right on {share} at some radius."


def _measured(figure: Figure, samples: int) -> tuple[str, str]:
    return percent(figure.top1, samples), interval(figure.ci, samples)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table(head, ([literal(cell) for cell in row] for row in rows))

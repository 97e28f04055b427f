"""What is written from a report, beside `report.json`: page, JUnit XML, card, table."""

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow
from pyarrow import parquet
from torch import nn

from core.files import write_whole
from core.tables import markdown_table
from robustness.attacks.base import LIMITS
from robustness.parsing import L2_LIMIT, parse_eps
from robustness.report import html
from robustness.report.exhibits import collect
from robustness.report.schema import (
    BracketFigures,
    Figure,
    ModelFigures,
    ModelFlags,
    Report,
    Summary,
    plain,
)
from robustness.report.sentences import (
    at_budget,
    interval,
    lines,
    measured,
    of_certificate,
    of_figure,
    percent,
)

JUNIT = "report.junit.xml"
CARD = "card.md"
TABLE = "samples.parquet"
CSV = "samples.csv"
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&])")
_SCHEMA = pyarrow.schema(
    [
        ("sample", pyarrow.int64()),
        ("name", pyarrow.string()),
        ("label", pyarrow.int64()),
        ("model", pyarrow.string()),
        ("attack", pyarrow.string()),
        ("norm", pyarrow.string()),
        ("point", pyarrow.string()),
        ("value", pyarrow.float64()),
        ("part", pyarrow.string()),
        ("variant", pyarrow.string()),
        ("index", pyarrow.int64()),
        ("probability", pyarrow.float64()),
        ("margin", pyarrow.float64()),
        ("distance", pyarrow.float64()),
        ("robust", pyarrow.bool_()),
        ("robust_stopped", pyarrow.bool_()),
        ("robust_full", pyarrow.bool_()),
        ("confirmed", pyarrow.bool_()),
        ("confirmed_8bit", pyarrow.bool_()),
        ("correct", pyarrow.bool_()),
        ("radius", pyarrow.float64()),
        ("state", pyarrow.string()),
        ("method", pyarrow.string()),
    ]
)


def write_companions(
    folder: Path,
    report: Report,
    torch_model: nn.Module | None = None,
    masks: np.ndarray | None = None,
) -> None:
    """Write `report.html`, `report.junit.xml`, `card.md`, `samples.parquet` and `samples.csv`.

    Args:
        folder: of the evaluation, with its shards.
        report: what was found.
        torch_model: of the evaluated model, see `collect`.
        masks: (N, H, W) of the samples of a segmenter.
    """
    shown, note = collect(folder, report, torch_model, masks)
    noted = report.model_copy(update={"notes": [*report.notes, note]}) if note else report
    write_whole(folder / html.FILE, html.render(noted, shown))
    write_whole(folder / JUNIT, junit(report))
    write_whole(folder / CARD, card(report))
    rows = list(sample_rows(report))
    write_whole(folder / TABLE, as_parquet(rows))
    write_whole(folder / CSV, as_csv(rows))


def junit(report: Report) -> bytes:
    """One case for each figure of each model, one for its warnings, and one for the gate.

    The output of a case holds its figure, and the case passes: what must hold is the gate's
    to say. Warnings fail their case, for a figure that cannot be trusted must not look good.
    """
    root = ElementTree.Element("testsuites", name="robustness")
    for model in report.summary.models:
        _suite(root, model, report.summary)
    gate = report.summary.gate
    if gate is not None:
        suite = ElementTree.SubElement(root, "testsuite", name="gate")
        case = _case(suite, "gate", gate.text, gate.finding)
        if not gate.passed:
            _failure(case, "gate", gate.finding)
        _count(suite)
    _count(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _suite(root: ElementTree.Element, model: ModelFigures, summary: Summary) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name=plain(model.name))
    listed = ElementTree.SubElement(suite, "properties")
    for name in ("version", "digest", "runtime", "precision"):
        value = plain(str(getattr(model, name)))
        ElementTree.SubElement(listed, "property", name=name, value=value)
    first = "\n".join(lines(summary)) if model is summary.models[0] else ""
    _case(suite, model.name, "clean", f"{_line(model.clean, model, summary)}\n{first}".strip())
    for attack in model.attacks:
        name = " ".join(f"{attack.name} {attack.norm or ''} {attack.eps}".split())
        _case(suite, model.name, name, attack.finding)
    for one in model.corruptions:
        text = _line(one.accuracy, model, summary)
        _case(suite, model.name, f"{one.name} severity {one.severity}", text)
    for one in model.certificates:
        text = of_certificate(one, model.samples)
        _case(suite, model.name, f"smoothing sigma {one.sigma}", text)
    for one in model.brackets:
        norm = f"{one.kind} " if one.kind in LIMITS else ""
        _case(suite, model.name, f"{one.name} {norm}{one.eps}", one.finding)
    own = [warning for warning in summary.warnings if warning.model == model.name]
    case = _case(suite, model.name, "sanity checks", f"{len(own)} warnings")
    if own:
        _failure(case, own[0].code, "\n".join(warning.message for warning in own))
    _count(suite)


def _line(figure: Figure, model: ModelFigures, summary: Summary) -> str:
    return of_figure(figure, model.samples, summary.metric)


def _case(suite: ElementTree.Element, owner: str, name: str, text: str) -> ElementTree.Element:
    case = ElementTree.SubElement(suite, "testcase", classname=plain(owner), name=plain(name))
    ElementTree.SubElement(case, "system-out").text = plain(text)
    return case


def _failure(case: ElementTree.Element, kind: str, message: str) -> None:
    found = ElementTree.Element("failure", type=plain(kind), message=plain(message))
    found.text = plain(message)
    case.insert(0, found)  # the schema wants it before the output


def _count(element: ElementTree.Element) -> None:
    element.set("tests", str(len(element.findall(".//testcase"))))
    element.set("failures", str(len(element.findall(".//failure"))))


def card(report: Report) -> str:
    """A card with the result, every attack on every model, warnings, and what was evaluated."""
    summary, first = report.summary, report.summary.models[0]
    parts = [f"# Robustness of {literal(first.name)} {literal(first.version)}"]
    parts += map(literal, lines(summary))
    parts += [
        f"**Unreliable** ({literal(w.model)}): {literal(w.message)}" for w in summary.warnings
    ]
    if summary.gate is not None:
        parts.append(literal(summary.gate.finding))
    for model in summary.models:
        parts += _model(model, summary.metric)
    parts += [
        "## Notes",
        "\n".join(f"- {literal(note)}" for note in [*report.not_tried, *report.notes]),
    ]
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
    yield f"Digest `{model.digest}`, scored on {literal(model.runtime)} ({model.precision})."
    head = ("attack", "budget", metric, "95 % interval", "as served", "in 8 bit")
    rows = [("none", "", *_measured(model.clean, model.samples), "", "")]
    for one in model.attacks:
        served, in_8bit = (percent(s, model.samples) for s in (one.confirmed, one.confirmed_8bit))
        measured = _measured(one.robust, model.samples)
        rows.append((one.title, one.description, *measured, served, in_8bit))
    for name, figure in model.worst.items():
        where = at_budget(model, name).description
        rows.append(("worst of all", where, *_measured(figure, model.samples), "", ""))
    yield markdown_table(head, ([literal(cell) for cell in row] for row in rows))
    if model.corrupted is not None:
        yield f"Under corruptions on average: {of_figure(model.corrupted, model.samples, metric)}."
    for one in model.certificates:
        yield f"Smoothed with sigma {one.sigma}: {of_certificate(one, model.samples)}."
    if model.brackets:
        head = ("proof", "broken", "proved", "open", "proved accuracy", "95 % interval")
        head += ("robust accuracy", "95 % interval")
        yield markdown_table(head, (_bracket(one, model.samples) for one in model.brackets))


def _bracket(one: BracketFigures, samples: int) -> tuple[str, ...]:
    counts = (f"{number:,}" for number in (one.broken, one.proved, one.open))
    proved, robust = (
        _measured(each, samples) for each in (one.proved_accuracy, one.robust_accuracy)
    )
    return (literal(one.description), *counts, *proved, *robust)


def _measured(figure: Figure, samples: int) -> tuple[str, str]:
    iou = "" if figure.mean_iou is None else f" (mIoU {percent(figure.mean_iou, samples)})"
    if figure.perplexity is not None:
        ratio = "" if figure.ratio is None else f", ratio {measured(figure.ratio, figure.ratio_ci)}"
        iou = f" (perplexity {measured(figure.perplexity, figure.perplexity_ci)}{ratio})"
    return percent(figure.top1, samples) + iou, interval(figure.ci, samples)


def sample_rows(report: Report) -> Iterator[dict[str, Any]]:
    """What became of every sample, of every model, unattacked and under each attack and budget."""
    for one in report.samples:
        about = {"sample": one.index, "name": one.name, "label": one.label}
        for model in one.models:
            for row in _rows(model):
                yield row | about | {"model": model.name}


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of a table as csv; what a row has no value for is empty.

    A name that a spreadsheet would take for a formula begins with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, _SCHEMA.names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(row | {key: _no_formula(row[key]) for key in ("name", "model")})
    return text.getvalue()


def _no_formula(text: str) -> str:
    return "'" + text if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def as_parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    """The rows of a table as parquet; what a row has no value for is null."""
    table = pyarrow.Table.from_pylist(list(rows), schema=_SCHEMA)
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def _rows(model: ModelFlags) -> Iterator[dict[str, Any]]:
    yield {"attack": "none", **dict(model.clean)}
    for flags in model.attacks:
        ways = flags.gradients or {}
        yield {
            **dict(flags),
            "attack": flags.name,
            "point": flags.eps,
            "value": flags.eps_value,
            "index": flags.adversarial_index,
            "probability": flags.adversarial_probability,
            "robust_stopped": ways.get("stopped"),
            "robust_full": ways.get("full"),
        }
    for one in model.corruptions:
        point = f"{one.name}:{one.severity}"
        row = {"attack": "corruptions", "point": point, "value": one.severity}
        yield {**row, "index": one.index, "correct": one.correct}
    for one in model.certificates:
        value = parse_eps(one.sigma, limit=L2_LIMIT)
        row = {"attack": "smoothing", "point": one.sigma, "value": value}
        yield {**row, "index": one.index, "radius": one.radius, "correct": one.correct}
    for one in model.proofs:
        value, held = parse_eps(one.eps, limit=math.inf), one.state == "proved"
        norm = one.kind if one.kind in LIMITS else None
        row = {"attack": one.name, "norm": norm, "point": one.eps, "value": value}
        row |= {"margin": one.margin, "method": one.method}
        yield {**row, "state": one.state, "correct": held}

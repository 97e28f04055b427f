"""A report as text for a terminal."""

from collections.abc import Iterator

from core.percent import hundredths
from robustness.attacks.base import NORM_NAMES
from robustness.report.schema import (
    CertificateFigures,
    Comparison,
    Figure,
    ModelFigures,
    Report,
)
from robustness.report.sentences import lines as sentences
from robustness.report.sentences import measured, p_value, points


def render(report: Report) -> str:
    """All figures, intervals and warnings of a report."""
    summary, data = report.summary, report.data
    lines = [f"{summary.metric} on {data.samples} {data.kind}s, seed {report.seed}"]
    for model in summary.models:
        lines += ["", f"{model.name} {model.version} ({model.runtime}, {model.precision})"]
        lines += _table(model)
        lines += _corruptions(model)
        lines += _brackets(model)
        for certificate in model.certificates:
            lines += ["", *_certificate(certificate)]
    if summary.comparison is not None:
        exact = summary.metric in ("accuracy", "stability")
        lines += ["", *_comparison(summary.comparison, "exact McNemar" if exact else "sign test")]
    lines += [
        "",
        *sentences(summary),
        "",
        *(f"note: {note}" for note in [*report.not_tried, *report.notes]),
    ]
    lines += [f"WARNING ({w.model}): {w.message}" for w in summary.warnings]
    if not summary.reliable:
        lines.append("UNRELIABLE: do not quote these figures before the warnings are resolved.")
    if summary.gate is not None:
        lines.append(summary.gate.finding)
    return "\n".join(lines)


def _table(model: ModelFigures) -> list[str]:
    header = f"  {'attack':12}{'eps':>9}  {'robust':>6}  {'95 % interval':^15}{'confirmed':>10}"
    lines = [header + f"{'8 bit':>8}{'gap':>7}", _row("clean", "-", model.clean)]
    for attack in model.attacks:
        in_8bit = "-" if attack.confirmed_8bit is None else _percent(attack.confirmed_8bit)
        served = f"{_percent(attack.confirmed):>10}{in_8bit:>8}"
        gap = f"{_percent(attack.transfer_gap):>7}"
        ball = "" if attack.norm in (None, "Linf") else f" {NORM_NAMES[attack.norm]}"
        lines.append(_row(attack.name + ball, attack.eps, attack.robust, served + gap))
    return lines + [_row("worst", budget, figure) for budget, figure in model.worst.items()]


def _row(name: str, point: str, figure: Figure, rest: str = "") -> str:
    interval = f"{_percent(figure.ci[0])} - {_percent(figure.ci[1])}"
    iou = "" if figure.mean_iou is None else f"   mIoU {_percent(figure.mean_iou)}"
    if figure.perplexity is not None:
        iou = f"   perplexity {measured(figure.perplexity, figure.perplexity_ci)}"
    if figure.ratio is not None:
        iou += f"   ratio {measured(figure.ratio, figure.ratio_ci)}"
    return f"  {name:12}{point:>9}  {_percent(figure.top1):>6}  {interval:^15}{rest}{iou}".rstrip()


def _corruptions(model: ModelFigures) -> Iterator[str]:
    """Accuracy by corruption, one column for each severity."""
    if not model.corruptions:
        return
    severities = sorted({found.severity for found in model.corruptions})
    columns = "".join(f"{severity:>7}" for severity in severities)
    yield ""
    yield f"  {'corruption, severity':22}{columns}"
    for name in dict.fromkeys(found.name for found in model.corruptions):
        row = {f.severity: f.accuracy.top1 for f in model.corruptions if f.name == name}
        yield f"  {name:22}" + "".join(f"{_percent(row[s]):>7}" for s in severities if s in row)
    if model.corrupted is not None:
        interval = " - ".join(map(_percent, model.corrupted.ci))
        yield f"  mean {_percent(model.corrupted.top1)}, 95 % interval {interval}"
        yield f"  mean corruption error {_percent(1 - model.corrupted.top1)}"
    if model.mce is not None:
        yield f"  mCE against the other model {_percent(model.mce)}"


def _brackets(model: ModelFigures) -> Iterator[str]:
    """What is broken, proved and open in each set of changes."""
    if not model.brackets:
        return
    yield ""
    yield (
        f"  {'proof':16}{'':>5}{'broken':>8}{'proved':>8}{'open':>8}"
        f"{'proved accuracy':>19}  {'robust accuracy':>19}"
    )
    for one in model.brackets:
        counts = f"{one.broken:>8,}{one.proved:>8,}{one.open:>8,}"
        both = "  ".join(map(_accuracy, (one.proved_accuracy, one.robust_accuracy)))
        name = f"{one.name} {NORM_NAMES.get(one.kind, '')}"
        yield f"  {name:16}{one.eps:>5}{counts}{both}"


def _accuracy(figure: Figure) -> str:
    ends = f"({_percent(figure.ci[0])}-{_percent(figure.ci[1])})"
    return f"{_percent(figure.top1):>6} {ends:>12}"


def _certificate(found: CertificateFigures) -> Iterator[str]:
    yield (
        f"  smoothing, sigma {found.sigma}: {_percent(found.abstained)} % abstained; "
        "provably correct within an l2 radius of"
    )
    for point in found.curve[:: max(1, len(found.curve) // 8)]:
        interval = f"{_percent(point.ci[0])} - {_percent(point.ci[1])}"
        yield f"  {point.radius:>12.3f}{_percent(point.share):>11}  {interval:^15}".rstrip()


def _comparison(other: Comparison, test: str) -> Iterator[str]:
    yield f"{other.first} minus {other.second}, {test}"
    for where, pair in [("clean", other.clean), *other.worst.items()]:
        yield f"  {where:14} {points(pair)}, {p_value(pair)}"


def _percent(value: float) -> str:
    return hundredths(value, 1)

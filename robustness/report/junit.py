"""`report.junit.xml`: what a build server shows of an evaluation."""

from xml.etree import ElementTree

from robustness.report.figures import Figure, ModelFigures, Summary
from robustness.report.markup import plain
from robustness.report.schema import Report
from robustness.report.sentences import interval, percent

FILE = "report.junit.xml"


def render(report: Report) -> bytes:
    """One case for each figure of each model, one for its warnings, and one for the gate.

    A figure is told in the output of its case, which always passes: what must hold is the gate's
    to say. Warnings fail their case, for a figure that cannot be trusted must not look good.
    """
    root = ElementTree.Element("testsuites", name="robustness")
    for model in report.summary.models:
        _suite(root, model, report.summary)
    gate = report.summary.gate
    if gate is not None:
        suite = ElementTree.SubElement(root, "testsuite", name="gate")
        case = _case(suite, "gate", gate.text, gate.reason)
        if not gate.passed:
            _failure(case, "gate", gate.reason)
        _count(suite)
    _count(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _suite(root: ElementTree.Element, model: ModelFigures, summary: Summary) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name=plain(model.name))
    listed = ElementTree.SubElement(suite, "properties")
    for name in ("version", "digest", "runtime", "precision"):
        value = plain(str(getattr(model, name)))
        ElementTree.SubElement(listed, "property", name=name, value=value)
    figures = [("clean", model.clean)]
    figures += [(f"{a.name} {a.norm or ''} {a.eps}", a.robust) for a in model.attacks]
    figures += [(f"{c.name} severity {c.severity}", c.accuracy) for c in model.corruptions]
    for name, figure in figures:
        _case(suite, model.name, " ".join(name.split()), _told(figure, model, summary.metric))
    for one in model.certificates:
        share = percent(one.curve[0].share, model.samples)
        _case(suite, model.name, f"smoothing sigma {one.sigma}", f"certified accuracy {share}")
    own = [warning for warning in summary.warnings if warning.model == model.name]
    case = _case(suite, model.name, "no sign of a false figure", f"{len(own)} warnings")
    if own:
        _failure(case, own[0].code, "\n".join(warning.message for warning in own))
    _count(suite)


def _told(figure: Figure, model: ModelFigures, metric: str) -> str:
    share, ends = percent(figure.top1, model.samples), interval(figure.ci, model.samples)
    return f"{metric} {share}, 95 % interval {ends}, {model.samples} samples"


def _case(suite: ElementTree.Element, owner: str, name: str, told: str) -> ElementTree.Element:
    case = ElementTree.SubElement(suite, "testcase", classname=plain(owner), name=plain(name))
    ElementTree.SubElement(case, "system-out").text = plain(told)
    return case


def _failure(case: ElementTree.Element, kind: str, message: str) -> None:
    found = ElementTree.Element("failure", type=plain(kind), message=plain(message))
    found.text = plain(message)
    case.insert(0, found)  # the schema wants it before the output


def _count(element: ElementTree.Element) -> None:
    element.set("tests", str(len(element.findall(".//testcase"))))
    element.set("failures", str(len(element.findall(".//failure"))))

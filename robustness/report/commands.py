"""The commands that repeat an evaluation and that check its report."""

import shlex

from robustness.report.schema import FILE, Report


def commands(report: Report) -> str:
    """What to type in a shell; folders and data are named by their roles, paths are nobody's."""
    first, *others = report.summary.models
    words = ["python", "-m", "robustness", "evaluate", "--artifact", _folder(first.name)]
    for other in others:
        words += ["--compare", _folder(other.name)]
    words += ["--data", "DATA", "--spec", "spec.json", "--output", "OUTPUT"]
    evaluate = " ".join(map(shlex.quote, words)).replace(" --data", " \\\n    --data")
    about = f"# spec.json: the spec below; DATA: the {report.data.samples:,} {report.data.kind}s"
    return "\n".join([about, evaluate, f"python -m robustness verify OUTPUT/{FILE}"])


def _folder(name: str) -> str:
    return f"artifacts/{name}"

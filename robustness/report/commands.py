"""The commands that repeat an evaluation and that check its report."""

import shlex

from robustness.report.schema import FILE, Report


def commands(report: Report) -> str:
    """What to type in a shell; folders and data are named by their roles, paths are nobody's."""
    spec = report.spec.model_dump(mode="json", exclude_none=True)
    first, *others = report.summary.models
    words = ["python", "-m", "robustness", "evaluate", "--artifact", _folder(first.name)]
    for other in others:
        words += ["--compare", _folder(other.name)]
    words += ["--data", "DATA", "--spec", "spec.json", "--output", "OUTPUT"]
    evaluate = " ".join(map(shlex.quote, words)).replace(" --data", " \\\n    --data")
    return "\n".join(
        [
            f"# spec.json: the spec below, {len(spec['attacks'])} attack(s), seed {report.seed}",
            evaluate,
            f"python -m robustness verify OUTPUT/{FILE}",
        ]
    )


def _folder(name: str) -> str:
    return f"artifacts/{name}"

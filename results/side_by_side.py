"""What each attention reaches on each task, in one table, from the records of runs."""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from core.tables import markdown_table
from results.headlines import headline_of

TITLE = "Attentions side by side"
_USUAL = {"estimator": "difference", "scaling": "max", "causal_metric": "prefix"}
_BACKBONES = ("deit_tiny", "lm_small", "lra_transformer")
_SAME = ("train.accumulate", "train.precision")  # other rounding and dropout, the same budget
_LEAST = 4  # models with another attention, for a task to have a column
_ABOUT = (
    "Test figures at the small sizes, with their recipes' budgets of today; the mean ± standard "
    "deviation where there are several seeds, whose number stands behind it. All else is one seed, "
    "which ranks nothing. `dot` is the backbone of the task with dot-product attention: "
    "`lra_transformer`, `deit_tiny` or `lm_small`."
)


class Label(NamedTuple):
    """A line of the table; they are sorted by rank, then by text."""

    rank: int
    text: str


def section(records: Sequence[dict[str, Any]]) -> str:
    """The table under its title, a column for each task with several attentions; or nothing."""
    found: dict[str, dict[Label, list[dict[str, Any]]]] = {}
    for record in records:
        if record["kind"] == "run" and _counts(record):
            task = found.setdefault(record["recipe"]["name"].removesuffix(_suffix(record)), {})
            task.setdefault(label(record["recipe"]["model"]), []).append(record["metrics"])
    tasks = {task: own for task, own in found.items() if len(own) >= _LEAST}
    if not tasks:
        return ""
    labels = sorted({each for own in tasks.values() for each in own})
    rows = [[each.text, *(_cell(own.get(each, [])) for own in tasks.values())] for each in labels]
    heads = [f"{task}, {_title(own)}" for task, own in tasks.items()]
    return f"## {TITLE}\n\n{_ABOUT}\n\n{markdown_table(('attention', *heads), rows)}\n"


def label(model: dict[str, Any]) -> Label:
    """A model's attention, with unusual options of a metric; its own name if it stands alone."""
    backbone = model["name"].removesuffix("_elliptical")
    if backbone not in _BACKBONES:
        return Label(rank=2, text=f"`{model['name']}`")
    by_name = "dot" if backbone == model["name"] else "elliptical"  # in older records
    attention = model.get("attention", by_name)
    return Label(rank=attention != "dot", text=" ".join([f"`{attention}`", *unusual(model)]))


def unusual(model: dict[str, Any]) -> list[str]:
    """The options of a metric that are not the usual ones, such as "estimator=random"."""
    options = model.get("attention_options") or {}
    given = ((key, options.get(key, usual), usual) for key, usual in _USUAL.items())
    return [f"{key}={value}" for key, value, usual in given if value != usual]


def _counts(record: dict[str, Any]) -> bool:
    recipe = record["recipe"]
    special = recipe["adversarial"] or recipe["distillation"]
    changed = [each for each in record["changes"] if each.partition("=")[0] not in _SAME]
    return recipe["size"] == "small" and not special and not changed


def _suffix(record: dict[str, Any]) -> str:
    return f"-{record['recipe']['variant']}"


def _title(own: dict[Label, list[dict[str, Any]]]) -> str:
    headline = headline_of(next(iter(own.values()))[0])
    return headline.title + (", %" if headline.key == "accuracy" else "")


def _cell(runs: Sequence[dict[str, Any]]) -> str:
    if not runs:
        return ""
    headline = headline_of(runs[0])
    if len(runs) == 1:
        return headline.shown(headline.of(runs[0]))
    values = [headline.number(headline.of(metrics)) for metrics in runs]
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f} ({len(values)})"

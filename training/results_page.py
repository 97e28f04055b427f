"""Write `docs/results.md` from records: nothing on that page is typed."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from robustness.intervals import wilson

_HEAD = """# Results

Written by `python -m training results` from the records in [`results/`](results); do not edit it.
Accuracies in percent on the test split, which no run has seen before its end. The interval is
Wilson's at 95 %: what the number of test samples alone leaves open, not what another seed changes.
A size other than `full` is a recipe scaled down (`size=`): its figures say nothing about the models
of the papers. A `+` behind a commit: a file was changed since. Run time: training and validation,
over all sittings.
"""
_COLUMNS = (
    "model", "size", "seed", "parameters", "trained on", "n", "accuracy", "95 % interval",
    "paper", "run time", "on", "commit",
)  # fmt: skip


def page(records: Sequence[dict[str, Any]], papers: dict[str, dict[str, Any]]) -> str:
    """The whole page.

    Args:
        records: see `training.results.read_records`.
        papers: by data set: `source`, and the accuracy of each model.
    """
    runs = [record for record in records if record["kind"] == "run"]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    sources = sorted({run["recipe"]["data"]["source"] for run in runs})
    parts = [_HEAD]
    for source in sources:
        own = [run for run in runs if run["recipe"]["data"]["source"] == source]
        parts.append(_task(source, own, papers.get(source, {})))
    parts += [_evaluation(record) for record in evaluations]
    if not records:
        parts.append("No run has been recorded yet.\n")
    return "\n".join(parts)


def _task(source: str, runs: list[dict[str, Any]], papers: dict[str, Any]) -> str:
    described = sorted({run["metrics"]["data"] for run in runs})
    lines = [f"## {source}", "", *(f"Data: {text}." for text in described)]
    if papers:
        lines.append(f"Paper: {papers['source']}, at the paper's size.")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in sorted(runs, key=_place):
        groups.setdefault(_place(run)[:2], []).append(run)
    rows = [row for group in groups.values() for row in _rows(group, papers)]
    return "\n".join([*lines, "", *_table(_COLUMNS, rows), ""])


def _place(run: dict[str, Any]) -> tuple[str, str, int]:
    recipe = run["recipe"]
    return recipe["size"] or "full", recipe["name"], recipe["seed"]


def _rows(runs: list[dict[str, Any]], papers: dict[str, Any]) -> list[list[str]]:
    """A row for each seed, and one for their mean where there are several."""
    rows = [_row(run, papers) for run in runs]
    if len(runs) > 1:
        figures = [100 * run["metrics"]["test_accuracy"] for run in runs]
        mean = f"{statistics.mean(figures):.2f} ± {statistics.stdev(figures):.2f}"
        first = rows[0]
        seeds = f"mean of {len(runs)}, ± s.d."
        rows.append([first[0], first[1], seeds, *first[3:6], mean, "", first[8], "", "", ""])
    return rows


def _row(run: dict[str, Any], papers: dict[str, Any]) -> list[str]:
    recipe, metrics = run["recipe"], run["metrics"]
    count, accuracy = metrics["test_samples"], metrics["test_accuracy"]
    paper = papers.get(recipe["model"]["name"]) if recipe["adversarial"] is None else None
    environment = metrics["environment"]
    device = environment["device"]
    on = f"{environment['threads']} threads" if device == "cpu" else device
    return [
        recipe["name"],
        recipe["size"] or "full",
        str(recipe["seed"]),
        f"{metrics['parameters'] / 1e6:.2f} M",
        f"{metrics['train_samples']:,}",
        f"{count:,}",
        f"{100 * accuracy:.2f}",
        _interval(wilson(round(accuracy * count), count)),
        "" if paper is None else f"{100 * paper:.1f}",
        f"{metrics['seconds'] / 60:.1f} min",
        on,
        _commits(run["sittings"]),
    ]


def _commits(sittings: list[dict[str, Any]]) -> str:
    """The commits that a run was trained at, in the order of its sittings."""
    commits = [sitting["commit"] for sitting in sittings]
    short = [commit[:8] + ("+" if commit.endswith("+") else "") for commit in commits]
    return ", ".join(dict.fromkeys(short))


def _evaluation(record: dict[str, Any]) -> str:
    summary, data = record["summary"], record["data"]
    names = " and ".join(model["name"] for model in summary["models"])
    lines = [
        f"## Robustness of {names}",
        "",
        f"{data['samples']:,} images, seed {record['seed']}, {summary['metric']}; images sha256 "
        f"{data['digest'][:12]}. Robust: see the README.",
        "",
    ]
    columns = ("attack", "eps", *(model["name"] for model in summary["models"]))
    rows = [["none", "", *(_figure(model["clean"]) for model in summary["models"])]]
    attacks = zip(*(model["attacks"] for model in summary["models"]), strict=True)
    for figures in attacks:
        name, eps = figures[0]["name"], figures[0]["eps"]
        rows.append([name, eps, *(_figure(each["robust"]) for each in figures)])
    for eps in summary["models"][0]["worst"]:
        worst = (_figure(model["worst"][eps]) for model in summary["models"])
        rows.append(["worst of all", eps, *worst])
    lines += [*_table(columns, rows), ""]
    if summary["comparison"] is not None:
        lines += [*_comparison(summary["comparison"]), ""]
    lines += [f"Warning: {each['message']}" for each in summary["warnings"]]
    return "\n".join(lines)


def _comparison(comparison: dict[str, Any]) -> list[str]:
    pairs = {"clean": comparison["clean"]} | {
        f"worst at {eps}": pair for eps, pair in comparison["worst"].items()
    }
    columns = ("image by image", "difference", "only the first", "only the second", "McNemar p")
    rows = [
        [
            what,
            f"{100 * pair['difference']:+.2f}",
            str(pair["only_first"]),
            str(pair["only_second"]),
            f"{pair['p_value']:.2g}",
        ]
        for what, pair in pairs.items()
    ]
    return [
        f"First: {comparison['first']}; second: {comparison['second']}.",
        "",
        *_table(columns, rows),
    ]


def _figure(figure: dict[str, Any]) -> str:
    return f"{100 * figure['top1']:.1f} {_interval(figure['ci'])}"


def _interval(bounds: Iterable[float]) -> str:
    low, high = bounds
    return f"[{100 * low:.1f}, {100 * high:.1f}]"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return lines + [f"| {' | '.join(row)} |" for row in rows]

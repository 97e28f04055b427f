"""Write `docs/results.md` from records: nothing on that page is typed."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from core.percent import hundredths
from core.tables import markdown_table
from results import isomap
from results.headlines import headline_of
from results.inside_page import ABOUT, picture, picture_name, section
from results.side_by_side import section as attentions
from results.side_by_side import unusual

_HEAD = """# Results

Written by `./assay results collect` from the records in [`results/`](results); do not edit it.
Figures are of the test split, which no run has seen before its end, accuracies in percent. Their
interval is Wilson's at 95 %: what the number of test samples alone leaves open, not what another
seed changes.
A size other than `full` is a recipe scaled down (`size=`): its figures say nothing about the models
of the papers. After it stands what a run did otherwise than its recipe says today. A `+` behind a
commit: a file was changed since. Run time: training and validation, over all sessions. Waiting: the
share of the time of training that the model waited for data.
"""
_PART = "a part, not the whole split"
_IOU = "test_mean_iou"
_COLUMNS = (
    "model", "size", "seed", "parameters", "trained on", "n", "", "95 % interval",
    "paper", "run time", "on", "steps/s", "waiting", "commit",
)  # fmt: skip


def page(records: Sequence[dict[str, Any]], papers: dict[str, dict[str, Any]]) -> str:
    """The whole page.

    Args:
        records: see `results.records.read_records`.
        papers: by data set: `source`, and the accuracy of each model or attention.
    """
    parts = [_HEAD + (ABOUT if _of(records, "analysis") else "")]
    parts += filter(None, [attentions(records)])
    parts += [_task(source, own, papers.get(source, {})) for source, own in _by_source(records)]
    parts += [_evaluation(record) for record in records if record["kind"] == "evaluation"]
    if not records:
        parts.append("No run has been recorded yet.\n")
    return "\n".join(parts)


def pictures(records: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The pictures of the page, SVG by the names of their files in `images` beside it."""
    drawn = {}
    for source, own in _by_source(records):
        if analyses := _of(own, "analysis"):
            drawn[picture_name(source)] = picture(analyses)
        if shown := [record for record in analyses if record.get("isomap")]:
            drawn[isomap.picture_name(source)] = isomap.picture(shown)
    return drawn


def _by_source(records: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The records about runs, by the data set that was learned, both in order of their names."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record["kind"] != "evaluation":
            found.setdefault(_data(record["recipe"]), []).append(record)
    return sorted(found.items())


def _data(recipe: dict[str, Any]) -> str:
    """The data of a recipe; of a language model, also what its tokens are."""
    data = recipe["data"]
    return f"{data['source']}-{data['tokenizer']}" if "context" in data else data["source"]


def _of(records: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The records of a kind, in the order of their runs."""
    found = (record for record in records if record["kind"] == kind)
    return sorted(found, key=lambda record: record.get("run", ""))


def _task(source: str, records: list[dict[str, Any]], papers: dict[str, Any]) -> str:
    lines = [f"## {source}", ""]
    if runs := _of(records, "run"):
        lines += _accuracies(runs, papers)
    if masks := [run for run in runs if _IOU in run["metrics"]]:
        lines += _masks(masks, papers.get("mean_iou", {}))
    if swapped := _of(records, "word-swap"):
        lines += (_perplexities if "ratio" in swapped[0] else _word_swap)(swapped)
    if analyses := _of(records, "analysis"):
        lines += section(source, analyses)
    return "\n".join(lines)


def _accuracies(runs: list[dict[str, Any]], papers: dict[str, Any]) -> list[str]:
    described = sorted({run["metrics"]["data"] for run in runs})
    lines = [f"Data: {text}." for text in described]
    if any(_PART in text for text in described):
        lines.append("**Learned from a part of the training split: no result on the whole set.**")
    if papers:
        lines.append(f"Paper: {papers['source']}, at the paper's size.")
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for run in sorted(runs, key=_place):
        groups.setdefault((*_place(run)[:2], *run["changes"]), []).append(run)
    rows = [row for group in groups.values() for row in _rows(group, papers)]
    columns = [column or headline_of(runs[0]["metrics"]).title for column in _COLUMNS]
    return [*lines, "", markdown_table(columns, [*_floor(runs), *rows]), ""]


def _floor(runs: list[dict[str, Any]]) -> list[list[str]]:
    """A row for what reads no input, such as the commonest class, where a run knows it."""
    for metrics in (run["metrics"] for run in runs):
        headline = headline_of(metrics)
        if headline.floor and headline.floor[0] in metrics:
            key, name = headline.floor
            count, value = metrics["test_samples"], metrics[key]
            figures = [f"{count:,}", headline.shown(value), headline.bounds(value, count)]
            return [[name, *[""] * 4, *figures, *[""] * 6]]
    return []


def _masks(runs: list[dict[str, Any]], papers: dict[str, float]) -> list[str]:
    """How well models find the classes of pixels."""
    columns = ("model", "size", "seed", "class accuracy", "mIoU", "paper", "mIoU of items")
    names = ("test_mean_class_accuracy", _IOU, "test_item_mean_iou")
    rows = []
    for run in sorted(runs, key=_place):
        recipe, metrics = run["recipe"], run["metrics"]
        figures = [f"{100 * metrics[name]:.2f}" if name in metrics else "" for name in names]
        paper = papers.get(_known_as(recipe["model"]))
        figures.insert(2, "" if paper is None else f"{100 * paper:.2f}")
        size = ", ".join([recipe["size"] or "full", *run["changes"]])
        rows.append([recipe["name"], size, str(recipe["seed"]), *figures])
    return [
        "Accuracy above is that of pixels. Here, from one table of true and predicted classes over "
        "all pixels of the split: the mean over classes of their accuracy, and of intersection "
        "over union, of all classes and of those that are no background.",
        "",
        markdown_table(columns, rows),
        "",
    ]


def _word_swap(records: list[dict[str, Any]]) -> list[str]:
    """How models of texts answer when words are swapped."""
    columns = ("model", "words swapped", "seed", "n", "clean", "swapped", "right on both", "p")
    rows = []
    for record in records:
        asked = (f"{100 * record['rate']:g} %", record["seed"], f"{record['samples']:,}")
        figures = (_figure(record[name]) for name in ("clean", "swapped", "robust"))
        rows.append([record["run"], *asked, *figures, f"{record['p_value']:.2g}"])
    return [
        "### Word Swap",
        "",
        'Words of the test texts become "AAA", whatever the model answers; p is McNemar\'s for'
        " clean and swapped texts being answered equally well. The paper gives no accuracy for it.",
        "",
        markdown_table(columns, rows),
        "",
    ]


def _perplexities(records: list[dict[str, Any]]) -> list[str]:
    """How well language models predict texts when words are swapped."""
    columns = ("model", "words swapped", "seed", "n", "perplexity", "swapped", "ratio")
    rows = []
    for record in records:
        asked = (f"{100 * record['rate']:g} %", record["seed"], f"{record['samples']:,}")
        figures = [
            _with_ends(record[name], form)
            for name, form in (("clean", ".1f"), ("swapped", ".1f"), ("ratio", ".3f"))
        ]
        rows.append([record["run"] + _leak(record["recipe"]), *asked, *figures])
    return [
        "### Word Swap",
        "",
        'Words of the test texts become "AAA", which is to be predicted, too. Perplexity by token, '
        "text by text, the first token of each not predicted; intervals by bootstrap over texts.",
        "",
        markdown_table(columns, rows),
        "",
    ]


def _with_ends(figure: dict[str, Any], form: str) -> str:
    low, high = figure["ci"]
    return f"{figure['value']:{form}} [{low:{form}}, {high:{form}}]"


def _place(run: dict[str, Any]) -> tuple[str, str, int]:
    recipe = run["recipe"]
    return recipe["size"] or "full", recipe["name"], recipe["seed"]


def _rows(runs: list[dict[str, Any]], papers: dict[str, Any]) -> list[list[str]]:
    """A row for each seed, and one for their mean where there are several."""
    rows = [_row(run, papers) for run in runs]
    if len(runs) > 1:
        headline = headline_of(runs[0]["metrics"])
        figures = [headline.number(headline.of(run["metrics"])) for run in runs]
        mean = f"{statistics.mean(figures):.2f} ± {statistics.stdev(figures):.2f}"
        first, seeds = rows[0], f"mean of {len(runs)}, ± s.d."
        rows.append([*first[:2], seeds, *first[3:6], mean, "", first[8], *[""] * 5])
    return rows


def _row(run: dict[str, Any], papers: dict[str, Any]) -> list[str]:
    recipe, metrics = run["recipe"], run["metrics"]
    headline, count = headline_of(metrics), metrics["test_samples"]
    paper = papers.get(_known_as(recipe["model"])) if recipe["adversarial"] is None else None
    return [
        recipe["name"] + (", distilled" if recipe["distillation"] else "") + _leak(recipe),
        ", ".join([recipe["size"] or "full", *run["changes"]]),
        str(recipe["seed"]),
        f"{metrics['parameters'] / 1e6:.2f} M",
        f"{metrics['train_samples']:,}",
        f"{count:,}",
        headline.shown(headline.of(metrics)),
        headline.bounds(headline.of(metrics), count),
        "" if paper is None else headline.of_papers(paper),
        f"{metrics['seconds'] / 60:.1f} min",
        ", ".join(dict.fromkeys(map(_device, run["sessions"]))),
        f"{run['rate']['steps_per_second']:.2f}",
        f"{_percent(run['rate']['waiting'])} %",
        _commits(run["sessions"]),
    ]


def _device(session: dict[str, str]) -> str:
    """What a session computed on."""
    device, threads = session["device"], session["threads"]
    return f"{threads} thread{'s' * (threads != '1')}" if device == "cpu" else device


def _leak(recipe: dict[str, Any]) -> str:
    """A mark for language models that see the tokens they predict."""
    options = recipe["model"].get("attention_options") or {}
    leaks = "context" in recipe["data"] and options.get("causal_metric") == "segment"
    return ", **a leak: sees what it predicts**" if leaks else ""


def _known_as(model: dict[str, Any]) -> str:
    """What the papers' tables call a model: after its attention, where its name does not say it.

    Behind it stand options of the metric that are not the usual ones.
    """
    name, attention = model["name"], model.get("attention", "dot")
    known = name if attention == "dot" or name.endswith(attention) else attention
    return (
        " ".join([known, *unusual(model)]) if known != attention and attention != "dot" else known
    )


def _commits(sessions: list[dict[str, Any]]) -> str:
    """The commits that a run was trained at, in the order of its sessions."""
    commits = [session["commit"] for session in sessions]
    short = [commit[:8] + ("+" if commit.endswith("+") else "") for commit in commits]
    return ", ".join(dict.fromkeys(short))


def _evaluation(record: dict[str, Any]) -> str:
    summary, data = record["summary"], record["data"]
    models = summary["models"]
    names = " and ".join(model["name"] for model in models)
    counted = (
        "Under attack an image counts where the model is right on it as it is and as the attack "
        "made it"
    )
    if summary["metric"] == "pixel accuracy":
        counted = "Of an image the lower share of right pixels counts, unattacked or attacked"
    lines = [
        f"## Robustness of {names}",
        "",
        *(f"- {m['name']}, version {m['version']}, artifact {m['digest'][:12]}" for m in models),
        "",
        f"{data['samples']:,} images, seed {record['seed']}, {summary['metric']} with 95 % "
        f"intervals; images sha256 {data['digest'][:12]}. {counted}; eps is in pixels from 0 to 1. "
        "The papers attacked other tensors, so their figures cannot stand beside these.",
        "",
    ]
    columns = ("attack", "eps", *(model["name"] for model in models))
    rows = [["none", "", *(_figure(model["clean"]) for model in models)]]
    for figures in zip(*(model["attacks"] for model in models), strict=True):
        first = figures[0]
        rows.append([_attack(first), first["eps"], *(_figure(each["robust"]) for each in figures)])
    for eps in models[0]["worst"]:
        worst = (_figure(model["worst"][eps]) for model in models)
        rows.append(["worst of all", eps, *worst])
    lines += [markdown_table(columns, rows), ""]
    if summary["comparison"] is not None:
        lines += [*_comparison(summary["comparison"]), ""]
    lines += [f"Warning: {each['message']}" for each in summary["warnings"]]
    lines += [f"Note: {note}" for note in record["notes"]]
    return "\n".join([*lines, ""])


def _attack(figures: dict[str, Any]) -> str:
    steps = figures["steps"]  # None where an attack takes none
    return figures["name"] + ("" if steps is None else f", {steps} step{'s' * (steps > 1)}")


def _comparison(comparison: dict[str, Any]) -> list[str]:
    pairs = {"clean": comparison["clean"]} | {
        f"worst at {eps}": pair for eps, pair in comparison["worst"].items()
    }
    differ = ("difference, points", "only the first", "only the second", "McNemar p")
    rows = []
    for what, pair in pairs.items():
        only = (pair["only_first"], pair["only_second"])
        rows.append([what, f"{100 * pair['difference']:+.2f}", *only, f"{pair['p_value']:.2g}"])
    return [
        f"First: {comparison['first']}; second: {comparison['second']}.",
        "",
        markdown_table(("image by image", *differ), rows),
    ]


def _figure(figure: dict[str, Any]) -> str:
    iou = figure.get("mean_iou")
    rest = "" if iou is None else f", mIoU {_percent(iou)}"
    return f"{_percent(figure['top1'])} {_interval(figure['ci'])}{rest}"


def _percent(value: float) -> str:
    """A share as percent, without the sign."""
    return hundredths(value, 1)


def _interval(bounds: Iterable[float]) -> str:
    """An interval of shares in percent, such as "[80.2, 82.9]"."""
    low, high = bounds
    return f"[{_percent(low)}, {_percent(high)}]"

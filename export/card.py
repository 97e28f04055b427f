"""The model card: what a model is, what it was trained on, and how it holds under attack.

It lies beside the manifest, outside the digest, and names the digest it scores.
"""

import json
from pathlib import Path
from typing import Any

from core.files import write_whole
from core.percent import hundredths
from core.tables import markdown_table
from runtimes.artifact import CARD_JSON, CARD_TEXT, Artifact
from runtimes.manifest import ONNX
from runtimes.tasks import TASKS

_LIMITS = [
    "It knows only its labels: every {sample} gets one of them, whatever it shows.",
    "Its accuracy was measured on data like its training data; other {sample}s may fare worse.",
    "Accuracy under attack is an upper bound for these attacks and radii only; "
    "a stronger attack may do more.",
]

_LANGUAGE_LIMITS = [
    "It knows only the tokens of its vocabulary; any other word is one and the same to it.",
    "Its perplexity was measured on texts like its training data; other texts may fare worse.",
    "It predicts from the tokens of its context alone.",
]
_LEAK = (
    "**It sees what it predicts**: its metric is the mean over the whole segment, later tokens "
    "included (`causal_metric=segment`). Its perplexity is not that of a causal model."
)

_OWN_ATTACK = (
    "Attacked accuracies are training's own quick check: its PGD on the first 1,000 images. "
    "Believe the section below instead."
)


def make_card(artifact: Artifact, *, robustness: dict[str, Any] | None = None) -> dict[str, Any]:
    """Describe an artifact.

    Args:
        artifact: a verified artifact.
        robustness: this model's part of an evaluation's result (an entry of `models`) with the
            keys `metric`, `data` and `warnings` (messages about this model) beside it, if any.
    """
    manifest = artifact.manifest
    recipe, source = manifest.training.get("recipe", {}), manifest.source
    return {
        "schema_version": 1,
        "digest": artifact.digest,
        "name": artifact.name,
        "version": artifact.version,
        "task": manifest.task,
        "architecture": manifest.architecture,
        "attention": None if source else _attention(artifact),
        "source": source and source.model_dump(mode="json"),
        "labels": artifact.labels,
        "input": manifest.input.model_dump(mode="json"),
        "data": recipe.get("data"),
        "distillation": recipe.get("distillation"),
        "adversarial_training": recipe.get("adversarial"),
        "metrics": manifest.metrics,
        "parity": manifest.parity.model_dump(mode="json"),
        "robustness": robustness,
        "limits": _limits(artifact),
    }


def _limits(artifact: Artifact) -> list[str]:
    task, config = TASKS[artifact.manifest.task], artifact.manifest.config
    leaks = config.get("attention_options", {}).get("causal_metric") == "segment"
    if task.labeled:
        return [limit.format(sample=task.reads[:-1]) for limit in _LIMITS]
    return [*([_LEAK] if leaks else []), *_LANGUAGE_LIMITS]


def write_card(folder: Path, card: dict[str, Any]) -> None:
    """Write card.json and card.md into an artifact's folder, replacing each in one step."""
    text = json.dumps(card, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    for name, content in ((CARD_JSON, text), (CARD_TEXT, render(card))):
        write_whole(folder / name, content)


def render(card: dict[str, Any]) -> str:
    """The card as Markdown."""
    task = TASKS[card["task"]]
    samples = task.reads
    labels = f", {len(card['labels'])} labels ({', '.join(card['labels'])})" * task.labeled
    parts = [
        f"# {card['name']} {card['version']}",
        f"{task.title.capitalize()} ({_kind(card)}): {_reads(card['input'])}{labels}.",
        f"Digest `{card['digest']}`",
        "## Data",
        _trained(card, samples),
        "## Metrics",
        markdown_table(("metric", "value"), list(card["metrics"].items()) or [("none", "")]),
        *_measured_in_fp32(card),
        *([_OWN_ATTACK] if "test_attacked_accuracy" in card["metrics"] else []),
        "## Robustness",
        _robustness(card["robustness"], samples),
        "## Parity of the exported graphs",
        f"Against {_reference(card)} on {card['parity']['samples']} {samples} of "
        f"{card['parity']['data']}:",
        _parity(card["parity"], _reference(card)),
        "## Limits",
        "\n".join(f"- {limit}" for limit in card["limits"]),
    ]
    return "\n\n".join(parts) + "\n"


def _kind(card: dict[str, Any]) -> str:
    if card.get("source"):
        return f"imported from {card['source']['file']}"
    return f"{card['architecture']}, {card['attention']} attention"


def _reference(card: dict[str, Any]) -> str:
    return "the imported graph on its own" if card.get("source") else "the eager model"


def _trained(card: dict[str, Any], samples: str) -> str:
    """What it was trained on, in words."""
    if card.get("source"):
        digest = card["source"]["sha256"]
        return f"Trained elsewhere, on data that its file does not tell (sha256 `{digest}`)."
    adversarial, teacher = card["adversarial_training"], card["distillation"]
    how = f"adversarially ({_pairs(adversarial)})" if adversarial else f"on clean {samples} only"
    taught = f" Distilled from a convolutional teacher ({_pairs(teacher)})." if teacher else ""
    return f"Trained on {card['data']['source']}, {how}.{taught}"


def _attention(artifact: Artifact) -> str:
    if artifact.attention is None:
        return "no"
    return "dot-product" if artifact.attention == "dot" else artifact.attention


def _reads(spec: dict[str, Any]) -> str:
    if spec["name"] == "tokens":
        return f"texts as token ids from 0 to {spec['range'][1]}"
    _, channels, height, width = spec["shape"]
    return f"{'grey' if channels == 1 else 'RGB'} images of {width} × {height} pixels"


def _robustness(result: dict[str, Any] | None, samples: str) -> str:
    if result is None:
        return "Not scored yet."
    rows = [("clean", "", _accuracy(result["clean"]), "", "")]
    for attack in result["attacks"]:
        in_8bit = attack["confirmed_8bit"]  # texts know none
        served = _percent(attack["confirmed"]), "" if in_8bit is None else _percent(in_8bit)
        rows.append((attack["name"], attack["eps"], _accuracy(attack["robust"]), *served))
    metric = result["metric"]
    head = ("attack", "eps", f"{metric} (95 % interval)", "confirmed", "confirmed in 8 bit")
    scored = f"Scored on {result['samples']} {samples} of {result['data']} ({result['runtime']})."
    warnings_found = [f"**Unreliable:** {warning}" for warning in result["warnings"]]
    return "\n\n".join([scored, *warnings_found, markdown_table(head, rows)])


def _accuracy(figure: dict[str, Any]) -> str:
    low, high = map(_percent, figure["ci"])
    found = f"{_percent(figure['top1'])} ({low} to {high})"
    shown = [f"{name} {figure[name]:.3f}" for name in ("perplexity", "ratio") if figure.get(name)]
    return ", ".join([found, *shown])


def _percent(share: float) -> str:
    return f"{hundredths(share, 1)}%"


def _measured_in_fp32(card: dict[str, Any]) -> list[str]:
    precision = card["parity"]["formats"].get(ONNX, {}).get("precision", "fp32")
    if precision == "fp32" or "test_accuracy" not in card["metrics"]:
        return []
    measured = f"Training measured these in fp32, not on {ONNX}, which is {precision}"
    return [f"{measured}: see the parity of the exported graphs."]


def _parity(parity: dict[str, Any], reference: str) -> str:
    eager = (reference.removeprefix("the "), "fp32", "", "", "", _share(parity.get("accuracy")))
    rows = [
        (
            name,
            figures.get("precision", "fp32"),
            figures.get("runtime") or "",
            f"{figures['max_abs_diff']:.1e}",
            figures["top1_mismatches"],
            _share(figures.get("accuracy")),
        )
        for name, figures in parity["formats"].items()
    ]
    head = ("file", "precision", "runtime", "largest difference of a logit", "other classes")
    return markdown_table((*head, "accuracy"), [eager, *rows] if eager[-1] else rows)


def _share(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{accuracy:.2%}"


def _pairs(fields: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in fields.items())

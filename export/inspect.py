"""Show what an artifact is, how it was measured, what its graph is made of, and how two differ."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from safetensors import SafetensorError, deserialize

from core.tables import Row, table
from export.graph_costs import OperatorCost, operator_costs, weight_types
from export.graphs import open_graph
from export.samples import Feed
from runtimes.artifact import Artifact, ArtifactError
from runtimes.base import InvalidInputs, as_feed, blank_inputs, in_batches, logits_shape
from runtimes.manifest import ONNX, PROBE, WEIGHTS
from runtimes.probe import read_probe
from runtimes.tasks import TASKS

T = TypeVar("T")
_BATCH = 32
_FIGURES = ("max |Δ logit|", "top-1 changes", "accuracy")


def inspect_artifact(artifact: Artifact) -> str:
    """Everything about an artifact as tables.

    Raises:
        ArtifactError: see `facts`.
    """
    parts = [
        table(("", ""), facts(artifact), left=2),
        files(artifact),
        table(("weights of the graph", "numbers", "kB"), _weights(artifact)),
        table(("operator", "nodes", "MFLOP", "share"), _operators(artifact)),
    ]
    return "\n\n".join(parts)


def files(artifact: Artifact) -> str:
    """An artifact's files with their sizes and their parity."""
    parity = artifact.manifest.parity
    accuracy = "" if parity.accuracy is None else f", whose accuracy is {parity.accuracy:.2%}"
    reference = "the source" if artifact.manifest.source else "eager"
    measured = f"parity against {reference} on {parity.samples} samples ({parity.data}){accuracy}"
    head = ("file", "kB", "precision", "runtime", *_FIGURES)
    return f"{table(head, _files(artifact))}\n{measured}"


def facts(artifact: Artifact) -> list[tuple[str, str]]:
    """What an artifact is, as names and values.

    Raises:
        ArtifactError: the work of its graph or the number of its weights cannot be found out.
    """
    manifest = artifact.manifest
    flops = sum(cost.flops for cost in _costs(artifact))
    precision = manifest.precision
    quantization = f" ({manifest.quantization})" if manifest.quantization else ""
    images = manifest.input.name == "images"
    tokens = "" if images else f" (of {artifact.text_spec.max_len} tokens)"
    trained = "" if precision == "fp32" else " (in fp32)"  # training measured it
    return [
        ("model", f"{artifact.name} {artifact.version}"),
        ("digest", artifact.digest),
        ("task", manifest.task),
        ("architecture", manifest.kind),
        *_imported(artifact),
        ("input", f"{manifest.input.name} {list(manifest.input.shape)} {manifest.input.dtype}"),
        ("labels", str(len(artifact.labels))),
        ("precision", f"{precision}{quantization}"),
        ("parameters", f"{_parameters(artifact):,}"),
        ("MFLOP a sample", f"{flops / 1e6:,.1f}{tokens}"),
        ("graph, kB", f"{artifact.file(ONNX).stat().st_size / 1000:,.0f}"),
        ("test accuracy", f"{manifest.metrics.get('test_accuracy', 'unknown')}{trained}"),
    ]


def _imported(artifact: Artifact) -> list[tuple[str, str]]:
    """What an import recorded, if it was one."""
    source = artifact.manifest.source
    if source is None:
        return []
    told = [f"{key} {value}" for key, value in source.input.items() if value is not None]
    return [
        ("source, sha256", source.sha256),
        ("input file", ", ".join(told)),
        ("source gives", source.scores),
        ("gradients", gradients(artifact).removeprefix("gradients: ")),
    ]


def gradients(artifact: Artifact) -> str:
    """Whether an imported artifact has gradients, and how well they do, as a line."""
    source = artifact.manifest.source
    found = source and source.gradients
    if found is None:
        return f"gradients: none, {source and source.blind}; attacks can only ask it"
    checked = f"{found.samples} samples ({found.data}), largest |Δ logit| {found.max_abs_diff:.1e}"
    return (
        f"gradients: same class on {found.agreement:.1%} of {checked}; what they promise along "
        f"random directions is off by {found.promise_error:.1%}"
    )


def _parameters(artifact: Artifact) -> int:
    if artifact.manifest.source is not None:
        return sum(count for count, _ in _of_graph(artifact, weight_types).values())
    try:
        tensors = deserialize(artifact.read(WEIGHTS))
    except SafetensorError as error:
        rule = "must be a safetensors file that can be read"
        raise ArtifactError(f"{WEIGHTS} of {artifact.name} {rule}, got {error}") from error
    return sum(math.prod(tensor["shape"]) for _, tensor in tensors)


def _of_graph(artifact: Artifact, read: Callable[[bytes], T]) -> T:
    try:
        return read(artifact.graph())
    except ValueError as error:
        raise ArtifactError(f"{ONNX} of {artifact.name}: {error}") from error


def _costs(artifact: Artifact) -> list[OperatorCost]:
    feed = blank_inputs(artifact, artifact.manifest.batch or 1)
    return _of_graph(artifact, lambda content: operator_costs(content, feed))


def _weights(artifact: Artifact) -> list[Row]:
    types = _of_graph(artifact, weight_types)
    return [(name, f"{count:,}", f"{size / 1000:,.0f}") for name, (count, size) in types.items()]


def _files(artifact: Artifact) -> list[Row]:
    rows: list[Row] = []
    for name in artifact.manifest.files:
        size = f"{artifact.file(name).stat().st_size / 1000:,.0f}"
        figures = artifact.manifest.parity.formats.get(name)
        if figures is None:
            rows.append((name, size, "", "", "", "", ""))
            continue
        accuracy = "" if figures.accuracy is None else f"{figures.accuracy:.2%}"
        runtime, largest = figures.runtime or "", f"{figures.max_abs_diff:.1e}"
        row = (figures.precision, runtime, largest, figures.top1_mismatches, accuracy)
        rows.append((name, size, *row))
    return rows


def _operators(artifact: Artifact) -> list[Row]:
    costs = _costs(artifact)
    total = sum(cost.flops for cost in costs)
    return [
        (cost.name, cost.count, f"{cost.flops / 1e6:,.1f}", f"{cost.flops / max(total, 1):.1%}")
        if cost.flops
        else (cost.name, cost.count, "", "")
        for cost in costs
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How two artifacts answer the stored inputs of the first: `same` of them with one class.

    `largest` and `mean` are absolute differences of logits.
    """

    runtimes: str
    samples: int
    same: int
    largest: float
    mean: float


def compare_artifacts(
    first: Artifact, second: Artifact, *, on_progress: Callable[[int], object] = lambda done: None
) -> str:
    """What differs between two artifacts, and how far their answers do.

    Args:
        first: an artifact, whose stored inputs are used.
        second: another one.
        on_progress: called with the number of inputs just answered by one of them.

    Raises:
        ArtifactError: they do not read the same inputs or do not know the same labels, the stored
            inputs are not what they read, or a graph cannot be read or gives no logits for them.
    """
    answers = compare_answers(first, second, on_progress=on_progress)
    pairs = zip(facts(first), facts(second), strict=True)
    rows: list[Row] = [(name, a, "=" if b == a else b) for (name, a), (_, b) in pairs]
    configs = (first.manifest.config, second.manifest.config)
    settings = [(key, *(config.get(key) for config in configs)) for key in configs[0] | configs[1]]
    rows += [(f"config.{key}", a, b) for key, a, b in settings if a != b]
    share = answers.same / answers.samples
    scored = [
        f"on {answers.samples} stored inputs of {first.name}:",
        f"  runtimes            {answers.runtimes}",
        f"  same class          {answers.same} of {answers.samples} ({share:.2%})",
        f"  largest |Δ logit|   {answers.largest:.2e}",
        f"  mean |Δ logit|      {answers.mean:.2e}",
    ]
    return "\n\n".join([table(("", "first", "second"), rows, left=3), "\n".join(scored)])


def compare_answers(
    first: Artifact, second: Artifact, *, on_progress: Callable[[int], object] = lambda done: None
) -> Comparison:
    """Let both graphs answer the stored inputs of the first; errors as of `compare_artifacts`."""
    for what in ("input", "output", "labels", "preprocessing"):
        if getattr(first.manifest, what) != getattr(second.manifest, what):
            raise ArtifactError(f"{first.name} and {second.name} must have the same {what}")
    feeds, task = _stored_inputs(first), TASKS[first.manifest.task]
    one, left = _answers(first, feeds, on_progress)
    other, right = _answers(second, feeds, on_progress)
    both = list(zip(left, right, feeds, strict=True))
    difference = np.concatenate([np.abs(task.counted(a - b, feed)).ravel() for a, b, feed in both])
    return Comparison(
        runtimes=f"{one}, {other}",
        samples=sum(map(len, left)),
        same=sum(int((~task.changed(*each)).sum()) for each in both),
        largest=float(difference.max()),
        mean=float(difference.mean()),
    )


def _stored_inputs(artifact: Artifact) -> list[Feed]:
    """The probe in batches, once it holds what the model reads."""
    try:
        batches = read_probe(artifact).batches(_BATCH)
        return [as_feed(stored, artifact.manifest) for stored, _ in batches]
    except InvalidInputs as error:
        raise ArtifactError(f"{PROBE} of {artifact.name}: {error}") from error


def _answers(
    artifact: Artifact, feeds: list[Feed], on_progress: Callable[[int], object]
) -> tuple[str, list[np.ndarray]]:
    """The runtime and precision of an artifact's graph, and its logits for each of the inputs."""
    precision, found = artifact.manifest.precision, []
    try:
        graph = open_graph(artifact.graph(), precision)
        for feed in feeds:
            logits = in_batches(graph, feed, artifact.manifest.batch)
            expected = logits_shape(artifact.manifest, feed)
            if logits.shape != expected:
                raise ArtifactError(f"logits must be {expected}, got {logits.shape}")
            if not np.isfinite(logits).all():
                raise ArtifactError("logits must be finite, got NaN or infinity")
            found.append(logits)
            on_progress(len(logits))
    except ArtifactError as error:
        raise ArtifactError(f"{artifact.name}: {error}") from error
    return f"{graph.name} ({precision})", found

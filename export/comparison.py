"""Show two artifacts beside each other, and how far their answers differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from core.tables import Row, table
from export.graphs import Graph, open_graph
from export.inspect import facts
from runtimes.artifact import Artifact, ArtifactError
from runtimes.base import InvalidInputs, as_feed
from runtimes.manifest import ONNX, PROBE
from runtimes.probe import read_probe

_BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How two artifacts answer the stored inputs of the first.

    Attributes:
        runtimes: what the first and the second were run on.
        samples: number of inputs.
        same: of them, those to which both give the same class.
        largest: largest absolute difference of a logit.
        mean: mean absolute difference of the logits.
    """

    runtimes: tuple[str, str]
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
        on_progress: called with the number of inputs just answered by both.

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
        f"  runtimes            {_runtimes(answers, first, second)}",
        f"  same class          {answers.same} of {answers.samples} ({share:.2%})",
        f"  largest |Δ logit|   {answers.largest:.2e}",
        f"  mean |Δ logit|      {answers.mean:.2e}",
    ]
    return "\n\n".join([table(("", "first", "second"), rows, left=3), "\n".join(scored)])


def compare_answers(
    first: Artifact, second: Artifact, *, on_progress: Callable[[int], object] = lambda done: None
) -> Comparison:
    """Let both graphs answer the stored inputs of the first; see `compare_artifacts`.

    Raises:
        ArtifactError: see `compare_artifacts`.
    """
    for what in ("input", "labels", "preprocessing"):
        if getattr(first.manifest, what) != getattr(second.manifest, what):
            raise ArtifactError(f"{first.name} and {second.name} must have the same {what}")
    graphs = [open_graph(each.read(ONNX), each.manifest.precision) for each in (first, second)]
    probe = read_probe(first)
    same, differences = 0, []
    for stored, _ in probe.batches(_BATCH):
        feed = _checked(stored, first)
        left, right = (
            _answer(graph, feed, each) for graph, each in zip(graphs, (first, second), strict=True)
        )
        same += int((left.argmax(1) == right.argmax(1)).sum())
        differences.append(np.abs(left - right))
        on_progress(len(left))
    difference = np.concatenate(differences)
    return Comparison(
        runtimes=(graphs[0].name, graphs[1].name),
        samples=len(probe),
        same=same,
        largest=float(difference.max()),
        mean=float(difference.mean()),
    )


def _checked(stored: Mapping[str, np.ndarray], artifact: Artifact) -> dict[str, np.ndarray]:
    try:
        return as_feed(stored, artifact.manifest)
    except InvalidInputs as error:
        raise ArtifactError(f"{PROBE} of {artifact.name}: {error}") from error


def _answer(graph: Graph, feed: dict[str, np.ndarray], artifact: Artifact) -> np.ndarray:
    try:
        logits = graph(feed)
    except ArtifactError as error:
        raise ArtifactError(f"{artifact.name}: {error}") from error
    expected = (len(next(iter(feed.values()))), len(artifact.labels))
    if logits.shape != expected:
        raise ArtifactError(f"{artifact.name}: logits must be {expected}, got {logits.shape}")
    if not np.isfinite(logits).all():
        raise ArtifactError(f"{artifact.name}: logits must be finite, got NaN or infinity")
    return logits


def _runtimes(answers: Comparison, *artifacts: Artifact) -> str:
    return ", ".join(
        f"{runtime} ({artifact.manifest.precision})"
        for runtime, artifact in zip(answers.runtimes, artifacts, strict=True)
    )

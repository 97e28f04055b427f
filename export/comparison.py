"""Show two artifacts beside each other, and how far their answers differ."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from export.artifact import Artifact, ArtifactError
from export.engines import open_engine
from export.inspection import facts
from export.manifest import ONNX
from export.probe import read_probe
from export.tables import Row, table

_BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How two artifacts answer the stored inputs of the first.

    Attributes:
        samples: number of inputs.
        agreement: share of equal answers.
        largest: largest absolute difference of a logit.
        mean: mean absolute difference of the logits.
    """

    samples: int
    agreement: float
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
        ArtifactError: they do not read the same inputs or do not know the same labels.
    """
    answers = compare_answers(first, second, on_progress=on_progress)
    pairs = zip(facts(first), facts(second), strict=True)
    rows: list[Row] = [(name, a, "=" if b == a else b) for (name, a), (_, b) in pairs]
    configs = (first.manifest.config, second.manifest.config)
    settings = [(key, *(config.get(key) for config in configs)) for key in configs[0] | configs[1]]
    rows += [(f"config.{key}", a, b) for key, a, b in settings if a != b]
    judged = [
        f"on {answers.samples} stored inputs of {first.name}:",
        f"  same class          {answers.agreement:.2%}",
        f"  largest |Δ logit|   {answers.largest:.2e}",
        f"  mean |Δ logit|      {answers.mean:.2e}",
    ]
    return "\n\n".join([table(("", "first", "second"), rows, left=3), "\n".join(judged)])


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
    engines = [open_engine(each.read(ONNX), each.manifest.precision) for each in (first, second)]
    probe = read_probe(first)
    same, differences = 0, []
    for feed, _ in probe.batches(_BATCH):
        left, right = (engine(feed) for engine in engines)
        same += int((left.argmax(1) == right.argmax(1)).sum())
        differences.append(np.abs(left - right))
        on_progress(len(left))
    difference = np.concatenate(differences)
    return Comparison(
        samples=len(probe),
        agreement=same / len(probe),
        largest=float(difference.max()),
        mean=float(difference.mean()),
    )

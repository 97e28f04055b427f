"""Show what an artifact is, how it was measured, and what its graph is made of."""

import math

from safetensors import SafetensorError, deserialize

from core.tables import Row, table
from export.graph_costs import OperatorCost, operator_costs, weight_types
from runtimes.artifact import Artifact, ArtifactError
from runtimes.manifest import ONNX, WEIGHTS

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
    measured = f"parity against eager on {parity.samples} samples ({parity.data}){accuracy}"
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
    trained = "" if precision == "fp32" else " (in fp32)"  # training measured it
    return [
        ("model", f"{artifact.name} {artifact.version}"),
        ("digest", artifact.digest),
        ("task", manifest.task),
        ("architecture", manifest.architecture),
        ("input", f"{manifest.input.name} {list(manifest.input.shape)} {manifest.input.dtype}"),
        ("labels", str(len(artifact.labels))),
        ("precision", f"{precision}{quantization}"),
        ("parameters", f"{_parameters(artifact):,}"),
        ("MFLOP a sample", f"{flops / 1e6:,.1f}{_tokens(artifact)}"),
        ("graph, kB", f"{artifact.file(ONNX).stat().st_size / 1000:,.0f}"),
        ("test accuracy", f"{manifest.metrics.get('test_accuracy', 'unknown')}{trained}"),
    ]


def _length(artifact: Artifact) -> int | None:
    return None if artifact.manifest.input.name == "images" else artifact.text_spec.max_len


def _tokens(artifact: Artifact) -> str:
    length = _length(artifact)
    return "" if length is None else f" (of {length} tokens)"


def _parameters(artifact: Artifact) -> int:
    try:
        tensors = deserialize(artifact.read(WEIGHTS))
    except SafetensorError as error:
        rule = "must be a safetensors file that can be read"
        raise ArtifactError(f"{WEIGHTS} of {artifact.name} {rule}, got {error}") from error
    return sum(math.prod(tensor["shape"]) for _, tensor in tensors)


def _costs(artifact: Artifact) -> list[OperatorCost]:
    try:
        return operator_costs(artifact.read(ONNX), length=_length(artifact))
    except ValueError as error:
        raise ArtifactError(f"{ONNX} of {artifact.name}: {error}") from error


def _weights(artifact: Artifact) -> list[Row]:
    try:
        types = weight_types(artifact.read(ONNX))
    except ValueError as error:
        raise ArtifactError(f"{ONNX} of {artifact.name}: {error}") from error
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

"""Make an artifact out of a model that was trained elsewhere; an ONNX file stays as it is."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from core.files import sha256
from export import parity
from export.card import make_card, write_card
from export.graphs import Graph, open_graph
from export.importers.base import Given, Source, Spec
from export.importers.gradient import NoGradient, make_gradient
from export.importers.source import SourceGraph
from export.importers.text_input import TextInput
from export.importers.wrap import TINY, Scores, graph_after, graph_before
from export.samples import Feed, Samples, in_parts, spread
from export.write import Progress, check_output, folder_beside, replace_folder
from runtimes.artifact import Artifact, open_artifact
from runtimes.compose import compose
from runtimes.manifest import (
    AFTER,
    BEFORE,
    GRADIENT,
    MANIFEST,
    ONNX,
    PROBE,
    Manifest,
    OutputSpec,
    Parity,
)
from runtimes.manifest import Source as Origin
from runtimes.probe import PROBE_SAMPLES, Probe, write_probe
from runtimes.tasks import MIN_AGREEMENT

_ASKED = 64  # inputs that tell probabilities from logits
_MAX_LABELS_BYTES = 4_000_000
_PROBE_PARTS = 8
_SUMS = 0.02  # of probabilities in half precision or 8 bit, they are off 1 by less


def import_graph(
    source: Source,
    output: Path,
    *,
    name: str,
    labels: Sequence[str],
    given: Given,
    data: str | None = None,
    differentiable: bool = True,
    on_progress: Progress = lambda stage, done: None,
) -> Artifact:
    """Wrap a graph into an artifact, compare it with its source, and only then move it in place.

    Args:
        source: what is imported; the bytes of an ONNX file are stored as they are.
        output: the artifact's folder; an artifact that lies there is replaced.
        name: of the model.
        labels: names of its classes, in order of index.
        given: what its input file says.
        data: labeled or unlabeled images or texts to compare on; None takes random ones.
        differentiable: whether to make gradients, where they can be had.
        on_progress: called as a stage begins and goes on, with the number of samples just used.

    Raises:
        ValueError: something is missing or contradicts the source, or the data cannot be read.
        ParityError: the artifact answers otherwise than the source on its own.
    """
    check_output(output)
    spec = source.complete(given)
    samples = spec.samples(labels, data)
    on_progress("asking the source", 0)
    graph, answers = source.answered(samples, spec)
    scores, logits = _scores(source.name, answers, labels)
    on_progress("parity", 0)
    wrapped = _wrap(graph, spec, scores, len(labels))
    figures = _measured(wrapped, logits, samples, functools.partial(on_progress, "parity"))
    files = wrapped.files | spec.files() | {PROBE: _probe(wrapped, logits, samples)}
    gradients, blind = None, None if differentiable else "left out"
    if differentiable:
        on_progress("gradients", 0)
        try:
            made = make_gradient(graph, spec, scores, samples, wrapped.served, len(labels))
            files[GRADIENT], gradients = made
        except NoGradient as error:
            blind = str(error)[:300]
    origin = Origin(
        file=source.name,
        format=source.format,
        sha256=source.sha256,
        batch=graph.batch,
        input=spec.keys(),
        scores=scores,
        gradients=gradients,
        blind=blind,
    )
    manifest = _manifest(graph, origin, name, labels, spec, files, figures)
    return _write(output, files, manifest)


@dataclass(frozen=True, kw_only=True)
class _Wrapped:
    """A graph with those around it: their files, and the logits of all three."""

    graph: SourceGraph
    files: dict[str, bytes]
    served: Callable[[Feed], np.ndarray]


def _wrap(graph: SourceGraph, spec: Spec, scores: Scores, classes: int) -> _Wrapped:
    before, after = graph_before(graph, spec), graph_after(graph, scores, classes)
    composed: Graph = open_graph(compose(before, graph.content, after), "fp32")
    wrapped = _Wrapped(
        graph=graph,
        files={BEFORE: before, ONNX: graph.content, AFTER: after},
        served=lambda feed: in_parts(composed, feed, graph.batch),
    )
    if isinstance(spec, TextInput):
        _require_longest(wrapped, spec)
    return wrapped


def _require_longest(wrapped: _Wrapped, spec: TextInput) -> None:
    """Refuse a length that only the longest texts would show to be too much."""
    tokens = np.full((1, spec.max_len), spec.tokenizer.pad)
    try:
        wrapped.served({"tokens": tokens, "mask": np.ones_like(tokens, np.bool_)})
    except ValueError as error:
        longest = f"max_len {spec.file.max_len}"
        raise ValueError(f"{wrapped.graph.name} does not run on {longest}: {error}") from error


def _write(output: Path, files: Mapping[str, bytes], manifest: Manifest) -> Artifact:
    """Write an artifact with its card; it is in place as a whole or not at all."""
    with folder_beside(output) as partial:
        for file, content in files.items():
            (partial / file).write_bytes(content)
        (partial / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        write_card(partial, make_card(open_artifact(partial)))
        replace_folder(output, partial)
    return open_artifact(output)


def read_labels(path: Path | None, source: Source) -> list[str]:
    """The names of the classes, from a text file with one a line, or a JSON list.

    Args:
        path: of the file; None takes the names that the source tells.
        source: what is imported.

    Raises:
        ValueError: there are none, they cannot be read, or are not as many as the scores.
    """
    count = source.classes
    if path is None and source.labels:
        return source.labels
    if path is None:
        raise ValueError(
            f"{source.name} does not name its {count or ''} classes: give --labels FILE, with one "
            "name a line in the order of the scores"
        )
    if path.stat().st_size > _MAX_LABELS_BYTES:
        raise ValueError(f"{path.name} must be at most {_MAX_LABELS_BYTES} bytes")
    try:
        text = path.read_text(encoding="utf-8")
        found: Any = json.loads(text) if path.suffix == ".json" else text.splitlines()
    except ValueError:
        raise ValueError(f"{path.name} must be text in UTF-8, or a JSON list of names") from None
    if not isinstance(found, list):
        raise ValueError(f"{path.name} must hold a list of names")
    labels = [str(label).strip() for label in found if str(label).strip()]
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise ValueError(f"{path.name} must hold at least 2 names, no two of them alike")
    if count is not None and count != len(labels):
        raise ValueError(f"{source.name} has {count} classes, and {path.name} {len(labels)} names")
    return labels


def _scores(name: str, answers: np.ndarray, labels: Sequence[str]) -> tuple[Scores, np.ndarray]:
    """What a source gives, from its answers (N, K), and their logits."""
    if answers.shape[1:] != (len(labels),):
        raise ValueError(
            f"{name} must give {len(labels)} scores an input, as there are names, got answers of "
            f"{answers.shape} to {len(answers)} inputs"
        )
    if not np.isfinite(answers).all():
        raise ValueError(f"{name} gives scores that are infinite or not a number")
    asked = answers[:_ASKED]
    if (asked >= 0).all() and (np.abs(asked.sum(1) - 1) < _SUMS).all():
        return "probabilities", np.log(answers + np.float32(TINY), dtype=np.float32)
    return "logits", answers.astype(np.float32)


def _measured(
    wrapped: _Wrapped, logits: np.ndarray, samples: Samples, on_progress: Callable[[int], object]
) -> Parity:
    """Figures of the composed graph against what the source gave on its own, if they will do."""
    precision, name = wrapped.graph.precision, wrapped.graph.name
    candidate = parity.Candidate(predict=wrapped.served, precision=precision, runtime="onnx-cpu")
    found = parity.measure(logits, {ONNX: candidate}, samples, on_progress=on_progress)
    figures = found.formats[ONNX]
    allowed = parity.TOLERANCE * max(1.0, float(np.abs(logits[:_ASKED]).max()))
    if precision == "fp32" and figures.max_abs_diff > allowed:
        problem = f"logits differ by {figures.max_abs_diff:.1e} once the graph is wrapped"
        raise parity.ParityError(name, f"{problem}, more than {allowed:.1e}")
    if figures.top1_mismatches > (1 - MIN_AGREEMENT) * found.samples:
        problem = f"{figures.top1_mismatches} of {found.samples} samples change their class"
        raise parity.ParityError(name, f"{problem} once the graph is wrapped")
    return found


def _probe(wrapped: _Wrapped, logits: np.ndarray, samples: Samples) -> bytes:
    """Some samples with their logits; those of texts in disorder, which are others."""
    rows = spread(len(samples), PROBE_SAMPLES)
    chosen = samples.take(rows).in_disorder(seed=0)
    if isinstance(chosen.inputs, np.ndarray):
        return write_probe(Probe(inputs={"images": chosen.inputs}, logits=logits[rows]))
    parts = np.array_split(np.arange(len(chosen)), _PROBE_PARTS)
    answers = [wrapped.served(chosen.feed(part)) for part in parts if len(part)]
    return write_probe(Probe(inputs=chosen.feed(), logits=np.concatenate(answers)))


def _manifest(
    graph: SourceGraph,
    origin: Origin,
    name: str,
    labels: Sequence[str],
    spec: Spec,
    files: dict[str, bytes],
    figures: Parity,
) -> Manifest:
    return Manifest(
        name=name,
        version="1",
        source=origin,
        **spec.recorded(),
        output=OutputSpec(shape=[-1, len(labels)]),
        labels=list(labels),
        precision=graph.precision,
        quantization=graph.quantization,
        files={file: sha256(content) for file, content in files.items()},
        parity=figures,
        metrics={},
    )

"""Make an artifact out of a graph that was trained elsewhere; the graph stays as it is."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from core.files import sha256
from data.images import ImageSpec
from data.sources import load_pixels, open_images
from export import parity
from export.card import make_card, write_card
from export.graphs import Graph, open_graph
from export.importers.gradient import NoGradient, make_gradient
from export.importers.input_file import InputFile
from export.importers.source import SourceGraph
from export.importers.wrap import TINY, Scores, graph_after, graph_before
from export.samples import Feed, Samples, spread
from export.write import Progress, check_output, folder_beside, replace_folder
from runtimes.artifact import Artifact, open_artifact
from runtimes.base import in_batches
from runtimes.compose import compose
from runtimes.gate import MIN_AGREEMENT
from runtimes.manifest import (
    AFTER,
    BEFORE,
    GRADIENT,
    MANIFEST,
    ONNX,
    PROBE,
    RANDOM,
    InputSpec,
    Manifest,
    OutputSpec,
    Parity,
    Source,
)
from runtimes.probe import PROBE_SAMPLES, Probe, write_probe

_ASKED = 64  # inputs that tell probabilities from logits
_MAX_LABELS_BYTES = 4_000_000
_SUMS = 0.02  # of probabilities in half precision or 8 bit, they are off 1 by less


@dataclass(frozen=True, kw_only=True)
class _Original:
    """The source on its own, given what its input file says, without any graph of ours."""

    source: SourceGraph
    graph: Graph
    spec: InputFile
    scores: Scores = "logits"

    def __call__(self, feed: Feed) -> np.ndarray:
        """The logits (B, K) of `images`, prepared in numpy."""
        prepared = {self.source.reads.name: prepare(feed["images"], self.source, self.spec)}
        found = in_batches(self._run, prepared, self.source.batch)
        if self.scores == "logits":
            return found
        return np.log(found + np.float32(TINY))

    def _run(self, feed: Feed) -> np.ndarray:
        return self.graph.outputs(feed)[self.source.gives.name]


def import_graph(
    source: SourceGraph,
    output: Path,
    *,
    name: str,
    labels: Sequence[str],
    given: InputFile,
    data: str | None = None,
    differentiable: bool = True,
    on_progress: Progress = lambda stage, done: None,
) -> Artifact:
    """Wrap a graph into an artifact, compare the two, and only then move it in place.

    Args:
        source: the graph, whose bytes are stored as they are.
        output: the artifact's folder; an artifact that lies there is replaced.
        name: of the model.
        labels: names of its classes, in order of index.
        given: what its input file says.
        data: labeled or unlabeled images to compare on; None takes random pixels.
        differentiable: whether to make gradients, where they can be had.
        on_progress: called as a stage begins and goes on, with the number of samples just used.

    Raises:
        ValueError: something is missing or contradicts the graph, or the data cannot be read.
        ParityError: the artifact answers otherwise than the source on its own.
    """
    check_output(output)
    spec = source.complete(given)
    samples = _samples(spec.spec(), labels, data)
    original = _Original(source=source, graph=source.open(), spec=spec)
    scores, largest = _scores(original, samples, labels)
    original = replace(original, scores=scores)
    files = {
        BEFORE: graph_before(source, spec),
        ONNX: source.content,
        AFTER: graph_after(source, scores, len(labels)),
    }
    served = _served(files, source)
    on_progress("parity", 0)
    figures = _measured(original, served, samples, functools.partial(on_progress, "parity"))
    _require(figures, source, largest)
    files[PROBE] = _probe(original, samples)
    on_progress("gradients", 0)
    gradients, blind = None, None if differentiable else "left out"
    if differentiable:
        try:
            made = make_gradient(source, spec, scores, samples, served, len(labels))
            files[GRADIENT], gradients = made
        except NoGradient as error:
            blind = str(error)[:300]
    origin = Source(
        file=source.name,
        sha256=source.sha256,
        batch=source.batch,
        input=spec.model_dump(mode="json"),
        scores=scores,
        gradients=gradients,
        blind=blind,
    )
    manifest = _manifest(source, origin, name, labels, spec.spec(), files, figures)
    return _write(output, files, manifest)


def _write(output: Path, files: Mapping[str, bytes], manifest: Manifest) -> Artifact:
    """Write an artifact with its card; it is in place as a whole or not at all."""
    with folder_beside(output) as partial:
        for file, content in files.items():
            (partial / file).write_bytes(content)
        (partial / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        write_card(partial, make_card(open_artifact(partial)))
        replace_folder(output, partial)
    return open_artifact(output)


def prepare(images: np.ndarray, source: SourceGraph, spec: InputFile) -> np.ndarray:
    """What a graph reads, computed in numpy: the independent check of `graph_before`.

    Args:
        images: (B, C, H, W) float32 in [0, 1].
        source: the graph.
        spec: its input file, complete.
    """
    low, high = spec.range or (0, 1)
    found = images[:, ::-1] if spec.channels == "bgr" else images
    found = found * np.float32(high - low) + np.float32(low)
    mean, std = (np.array(each, np.float32) for each in (spec.mean or [0], spec.std or [1]))
    found = (found - mean.reshape(1, -1, 1, 1)) / std.reshape(1, -1, 1, 1)
    if source.dtype == "uint8":
        found = np.rint(found)
    if spec.layout == "nhwc":
        found = found.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(found, source.dtype)


def read_labels(path: Path | None, source: SourceGraph) -> list[str]:
    """The names of the classes, from a text file with one a line, or a JSON list.

    Raises:
        ValueError: there is none, it cannot be read, or its names are not as many as the scores.
    """
    count = source.classes
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


def _samples(spec: ImageSpec, labels: Sequence[str], data: str | None) -> Samples:
    """Images of the data, evenly spread, or random ones: of every brightness and contrast."""
    if data is not None:
        images = open_images(data, label_names=labels)
        images = images.take(spread(len(images), parity.MIN_SAMPLES))
        name = data if data.startswith("hf:") else Path(data).name
        return Samples(inputs=load_pixels(images, spec), labels=images.labels, description=name)
    random = np.random.default_rng(0)
    mean, contrast = (random.random((PROBE_SAMPLES, spec.channels, 1, 1)) for _ in range(2))
    noise = random.random((PROBE_SAMPLES, spec.channels, spec.height, spec.width)) - 0.5
    pixels = np.rint((mean + contrast * noise).clip(0, 1) * 255).astype(np.uint8)
    return Samples(inputs=pixels, labels=None, description=RANDOM)


def _scores(original: _Original, samples: Samples, labels: Sequence[str]) -> tuple[Scores, float]:
    """What the graph gives, from its answers, and the largest of them."""
    source, count = original.source, min(_ASKED, len(samples))
    try:
        found = original(samples.feed(range(count)))
    except ValueError as error:
        raise ValueError(f"{source.name} does not run on its input: {error}") from error
    if found.shape != (count, len(labels)):
        raise ValueError(
            f"{source.name} must give {len(labels)} scores an image, as there are names, got "
            f"{found.shape} of {count} images"
        )
    if not np.isfinite(found).all():
        raise ValueError(f"{source.name} gives scores that are infinite or not a number")
    if (found >= 0).all() and (np.abs(found.sum(1) - 1) < _SUMS).all():
        return "probabilities", float(np.abs(np.log(found + TINY)).max())
    return "logits", float(np.abs(found).max())


def _served(files: dict[str, bytes], source: SourceGraph) -> Callable[[Feed], np.ndarray]:
    """The composed graph."""
    graph: Graph = open_graph(compose(files[BEFORE], files[ONNX], files[AFTER]), "fp32")
    return lambda feed: in_batches(graph, feed, source.batch)


def _measured(
    original: _Original,
    served: Callable[[Feed], np.ndarray],
    samples: Samples,
    on_progress: Callable[[int], object],
) -> Parity:
    """Figures of the composed graph against the source on its own."""
    precision = original.source.precision
    candidate = parity.Candidate(predict=served, precision=precision, runtime="onnx-cpu")
    return parity.measure(original, {ONNX: candidate}, samples, on_progress=on_progress)


def _require(found: Parity, source: SourceGraph, largest: float) -> None:
    """Refuse a composed graph that is another function than the source."""
    figures, allowed = found.formats[ONNX], parity.TOLERANCE * max(1.0, largest)
    if source.precision == "fp32" and figures.max_abs_diff > allowed:
        problem = f"logits differ by {figures.max_abs_diff:.1e} once the graph is wrapped"
        raise parity.ParityError(source.name, f"{problem}, more than {allowed:.1e}")
    if figures.top1_mismatches > (1 - MIN_AGREEMENT) * found.samples:
        problem = f"{figures.top1_mismatches} of {found.samples} samples change their class"
        raise parity.ParityError(source.name, f"{problem} once the graph is wrapped")


def _probe(original: _Original, samples: Samples) -> bytes:
    chosen = samples.take(spread(len(samples), PROBE_SAMPLES))
    parts = np.array_split(np.arange(len(chosen)), 8)
    logits = np.concatenate([original(chosen.feed(part)) for part in parts if len(part)])
    return write_probe(Probe(inputs={"images": np.asarray(chosen.inputs)}, logits=logits))


def _manifest(
    source: SourceGraph,
    origin: Source,
    name: str,
    labels: Sequence[str],
    image: ImageSpec,
    files: dict[str, bytes],
    figures: Parity,
) -> Manifest:
    return Manifest(
        name=name,
        version="1",
        source=origin,
        input=InputSpec(shape=[-1, image.channels, image.height, image.width]),
        output=OutputSpec(shape=[-1, len(labels)]),
        labels=list(labels),
        preprocessing=image.to_dict(),
        precision=source.precision,
        quantization=source.quantization,
        files={file: sha256(content) for file, content in files.items()},
        parity=figures,
        metrics={},
    )

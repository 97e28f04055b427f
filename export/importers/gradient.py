"""Gradients for an imported graph: made by onnx-ad, kept only where they are the graph's own."""

import importlib.util
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto

from export.child import run_child
from export.graphs import open_graph
from export.importers.base import Spec
from export.importers.lookups import find_lookups
from export.importers.source import SourceGraph
from export.importers.text_graphs import open_embedding, tokens_before
from export.importers.text_input import TextInput
from export.importers.unrounded import without_rounding
from export.importers.wrap import TINY, Scores, graph_after, graph_before
from export.samples import TEXTS_AT_ONCE, Feed, Samples, spread
from runtimes.artifact import ArtifactError
from runtimes.base import in_batches
from runtimes.compose import compose
from runtimes.gate import CopyFailure, require_copy
from runtimes.gradient import SHIFT, OnnxGradient, as_long
from runtimes.manifest import Gradients
from runtimes.threads import available_cores

_BATCH = 8  # images that a gradient is computed of at once, where the graph takes any number
_TOKENS = 32  # of texts around which gradients are compared
_PART = 64  # inputs that are compared at once
_TIMEOUT_S = 600
_MISSING = "onnx-ad is not installed (requirements/import.in)"


class NoGradient(ValueError):
    """A graph for which no gradients can be had; the message says why."""


def make_gradient(
    source: SourceGraph,
    spec: Spec,
    scores: Scores,
    samples: Samples,
    served: Callable[[Feed], np.ndarray],
    classes: int,
) -> tuple[bytes, Gradients]:
    """Differentiate a graph, and compare the result with what is served.

    Args:
        source: the graph.
        spec: its input file, complete.
        scores: what it gives.
        samples: inputs to compare on.
        served: the logits of the composed graph.
        classes: how many.

    Returns:
        An ONNX file as `OnnxGradient` reads it, and how well it does.

    Raises:
        NoGradient: an operator has no derivative, or the result is another function.
    """
    if importlib.util.find_spec("onnx_ad") is None:
        raise NoGradient(_MISSING)
    content = _differentiated(smooth(source, spec, scores, classes), source, spec)
    try:
        copy = OnnxGradient(content, threads=available_cores())
        return content, require_copy(
            copy,
            served,
            map(samples.feed, _parts(samples)),
            _near(samples),
            data=samples.description,
            rounds=source.quantization is not None,
            moved=_moved(source, spec, scores, classes),
        )
    except (ArtifactError, CopyFailure) as error:
        raise NoGradient(str(error)) from error


def smooth(source: SourceGraph, spec: Spec, scores: Scores, classes: int) -> bytes:
    """The composed graph without what has no gradient or loses it, as ONNX.

    Bytes, and the integers of an int8 graph, are the numbers that they are rounded from, and the
    logarithm of a softmax is taken at once, which does not saturate. Where it reads tokens, their
    embeddings can be shifted.
    """
    model = ModelProto()
    model.CopyFrom(source.model)
    del model.graph.value_info[:]
    reads = next(value for value in model.graph.input if value.name == source.reads.name)
    dtype = "float32" if source.dtype == "uint8" else source.dtype
    if source.dtype == "uint8":
        reads.type.tensor_type.elem_type = TensorProto.FLOAT
    if source.quantization is not None:
        try:
            without_rounding(model)
        except ValueError as error:
            raise NoGradient(f"its rounding cannot be taken out: {error}") from error
    last = next(node for node in model.graph.node if source.gives.name in node.output)
    after = graph_after(source, scores, classes)
    if scores == "probabilities" and last.op_type == "Softmax":
        last.op_type = "LogSoftmax"
        after = graph_after(source, "logits", classes, least=math.log(TINY))
    if isinstance(spec, TextInput):
        return compose(_shifted(model, source, spec), model.SerializeToString(), after)
    before = graph_before(replace(source, reads=reads, dtype=dtype), spec)
    return compose(before, model.SerializeToString(), after)


def _shifted(model: ModelProto, source: SourceGraph, spec: TextInput) -> bytes:
    """Open a graph behind its embeddings, and give the graph before it, which reads their shift."""
    lookups = find_lookups(model, spec.roles["tokens"])
    if len(lookups) != 1:
        raise NoGradient(f"tokens must be looked up in one table, got {len(lookups)}")
    open_embedding(model, lookups[0])
    return tokens_before(model, source.opset, spec, alone=False, shift=lookups[0].width)


def _moved(
    source: SourceGraph, spec: Spec, scores: Scores, classes: int
) -> Callable[[Feed], np.ndarray] | None:
    """The served graph itself, but with a shift of its embeddings; None where it rounds them."""
    if not isinstance(spec, TextInput) or source.quantization is not None:
        return None
    model = ModelProto()
    model.CopyFrom(source.model)
    before = _shifted(model, source, spec)
    after = graph_after(source, scores, classes)
    graph = open_graph(compose(before, model.SerializeToString(), after), "fp32")
    length = None if spec.length is None else spec.max_len

    def ask(feed: Feed) -> np.ndarray:
        """Logits (B, K) of `tokens`, `mask` and `shift`."""
        return in_batches(graph, as_long(feed, length), source.batch)

    return ask


def _differentiated(content: bytes, source: SourceGraph, spec: Spec) -> bytes:
    """The derivative for any number of inputs and tokens, where there is one, or else for one."""
    if not isinstance(spec, TextInput):
        return _derivative(content, "images", [source.batch or _BATCH])
    fixed = [source.batch or 1, spec.max_len]
    if spec.length is not None:
        return _derivative(content, SHIFT, fixed)
    try:
        return _derivative(content, SHIFT, [source.batch or 0, 0])
    except NoGradient:  # some operators have one for known lengths alone
        return _derivative(content, SHIFT, fixed)


def _derivative(content: bytes, start: str, sizes: Sequence[int]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        given, made, own = (Path(folder, name) for name in ("given.onnx", "made.onnx", "own"))
        given.write_bytes(content)
        arguments = [str(given), str(made), start, *map(str, sizes)]
        module, writable = "export.importers.differentiate", [Path(folder)]
        own.mkdir()
        ended = run_child(module, arguments, own=own, writable=writable, timeout=_TIMEOUT_S)
        if ended.status != 0:
            raise NoGradient(ended.reason)
        return made.read_bytes()


def _near(samples: Samples) -> Feed:
    """Some inputs, images or the beginnings of texts: they are asked a hundred times."""
    feed = samples.feed(spread(len(samples), _BATCH))
    return feed if "images" in feed else {k: values[:, :_TOKENS] for k, values in feed.items()}


def _parts(samples: Samples) -> list[np.ndarray]:
    size = _PART if isinstance(samples.inputs, np.ndarray) else TEXTS_AT_ONCE
    return np.array_split(np.arange(len(samples)), math.ceil(len(samples) / size))

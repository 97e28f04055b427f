"""Gradients of an imported graph: a graph of its own that gives logits and pulls seeds back."""

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from runtimes.base import in_batches
from runtimes.onnx import open_session

LOGITS, SEED = "logits", "adj_logits"
SHIFT, EMBEDDED = "shift", "assay/embedded"
Feed = dict[str, np.ndarray]


class OnnxGradient:
    """The differentiable copy of an imported model, run by ONNX Runtime.

    Its gradients are those of `start`: of `images` (B, C, H, W), or of `shift` (B, N, E), which is
    added to what a table of embeddings gives for `tokens` (B, N).

    Args:
        content: an ONNX file from the start, `tokens` and `mask` beside a shift, and `adj_logits`
            (B, K, 1) to `logits` and the start's gradient, with an axis of length 1 behind its own;
            for one B and N, or for any.
        threads: of one call.

    Attributes:
        start: "images" or "shift".
        table: embeddings of the tokens (V, E) float32; None of images.

    Raises:
        ArtifactError: it cannot be opened.
    """

    def __init__(self, content: bytes, *, threads: int) -> None:
        self._pulls = open_session(content, threads=threads)
        self._answers = open_session(_answering(content), threads=threads)
        shapes = {value.name: value.shape for value in self._pulls.get_inputs()}
        self.start = SHIFT if SHIFT in shapes else "images"
        self.table = _table(content) if self.start == SHIFT else None
        batch, length = shapes[self.start][:2]
        self._batch = batch if isinstance(batch, int) else None
        self._length = length if self.start == SHIFT and isinstance(length, int) else None

    def logits(self, feed: Feed) -> np.ndarray:
        """Logits (B, K) of `images` float32, or of `tokens` int64, their `mask` and a `shift`."""

        def run(part: dict[str, np.ndarray]) -> np.ndarray:
            """One batch."""
            return np.asarray(self._answers.run([LOGITS], part)[0])

        return in_batches(run, self._complete(feed), self._batch)

    def pull(self, feed: Feed, seed: np.ndarray) -> np.ndarray:
        """The start's gradient of the sum of logits weighted by a seed (B, K), both float32.

        That is the vector-Jacobian product of each input.
        """

        def run(part: dict[str, np.ndarray]) -> np.ndarray:
            """One batch."""
            return np.asarray(self._pulls.run([f"adj_{self.start}"], part)[0])[..., 0]

        complete = self._complete(feed) | {SEED: seed[..., None]}
        found = in_batches(run, complete, self._batch)
        return found if self.table is None else found[:, : feed["tokens"].shape[1]]

    def _complete(self, feed: Feed) -> dict[str, np.ndarray]:
        """The feed with a shift, and as long as the graph takes it."""
        if self.table is None:
            return dict(feed)
        shape = (*feed["tokens"].shape, self.table.shape[1])
        return as_long({SHIFT: np.zeros(shape, np.float32), **feed}, self._length)


def as_long(feed: Feed, length: int | None) -> dict[str, np.ndarray]:
    """Tokens (B, N), their mask and shift, padded to a length; None leaves them as they are."""
    missing = 0 if length is None else length - feed["tokens"].shape[1]
    return {
        name: np.pad(values, [(0, 0), (0, missing), *[(0, 0)] * (values.ndim - 2)])
        for name, values in feed.items()
    }


def _table(content: bytes) -> np.ndarray:
    """The constant that tokens are looked up in."""
    graph = ModelProto.FromString(content).graph
    [lookup] = [node for node in graph.node if EMBEDDED in node.output]
    [table] = [tensor for tensor in graph.initializer if tensor.name == lookup.input[0]]
    return numpy_helper.to_array(table).astype(np.float32)


def _answering(content: bytes) -> bytes:
    """The part of the graph that gives the logits: ONNX Runtime would compute the rest too."""
    model = ModelProto.FromString(content)
    graph, needed = model.graph, {LOGITS}
    kept = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            needed.update(_outer_names(node))
            kept.append(node)
    parts = {
        "node": list(reversed(kept)),
        "input": [value for value in graph.input if value.name != SEED],
        "output": [value for value in graph.output if value.name == LOGITS],
        "initializer": [tensor for tensor in graph.initializer if tensor.name in needed],
    }
    for name, values in parts.items():
        graph.ClearField(name)
        getattr(graph, name).extend(values)
    return model.SerializeToString()


def _outer_names(node: NodeProto) -> set[str]:
    """Names that graphs within a node read, theirs and others."""
    found: set[str] = set()
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                found.update(inner.input, _outer_names(inner))
    return found

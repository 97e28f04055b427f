"""Gradients of an imported graph: a graph of its own that gives logits and pulls seeds back."""

import numpy as np
from onnx import ModelProto, NodeProto

from runtimes.base import in_batches
from runtimes.onnx import open_session

IMAGES, LOGITS = "images", "logits"
SEED, PULLED = "adj_logits", "adj_images"


class OnnxGradient:
    """The differentiable copy of an imported model, run by ONNX Runtime.

    Args:
        content: an ONNX file from `images` and `adj_logits` (B, K, 1) to `logits` and `adj_images`
            (B, C, H, W, 1), for one B.
        threads: of one call.

    Raises:
        ArtifactError: it cannot be opened.
    """

    def __init__(self, content: bytes, *, threads: int) -> None:
        self._pulls = open_session(content, threads=threads)
        self._answers = open_session(_answering(content), threads=threads)
        self._batch = int(self._pulls.get_inputs()[0].shape[0])

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Logits (B, K) of images (B, C, H, W) float32."""

        def run(feed: dict[str, np.ndarray]) -> np.ndarray:
            """One batch."""
            return np.asarray(self._answers.run([LOGITS], feed)[0])

        return in_batches(run, {IMAGES: images}, self._batch)

    def pull(self, images: np.ndarray, seed: np.ndarray) -> np.ndarray:
        """The gradient (B, C, H, W) of the sum of logits weighted by a seed (B, K), both float32.

        That is the vector-Jacobian product of each image.
        """

        def run(feed: dict[str, np.ndarray]) -> np.ndarray:
            """One batch."""
            return np.asarray(self._pulls.run([PULLED], feed)[0])[..., 0]

        return in_batches(run, {IMAGES: images, SEED: seed[..., None]}, self._batch)


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

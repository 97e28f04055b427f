"""Attention maps of image models: which patches the head draws on, by attention rollout.

The maps come from a second session over the same graph, whose softmax outputs are made outputs of
the graph; the session that predicts stays as it is. Nothing here imports torch: the same figures
are computed from the torch model by `models.analysis.diagnostics`, and a test compares the two.

Source: Abnar & Zuidema, "Quantifying attention flow in transformers", ACL 2020, section 3.
"""

import io
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import onnx
import onnxruntime
from PIL import Image

from runtimes.artifact import Artifact, ArtifactError
from runtimes.manifest import ONNX
from runtimes.onnx import open_session
from service.http.refusal import ApiError

_FAMILIES = ("deit_", "fan_")  # vision transformers whose head reads class tokens


class AttentionMaps:
    """The attention of one model, opened at its first use; asked by one thread.

    Args:
        artifact: an image model, see `may_have`.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact

    @staticmethod
    def may_have(artifact: Artifact) -> bool:
        """Whether a model is of a kind with attention over patches."""
        return (artifact.manifest.architecture or "").startswith(_FAMILIES)

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Shares of the patches.

        Args:
            images: (B, C, H, W) float32 in [0, 1].

        Returns:
            (B, h, w) float32; at most 1 in sum, the rest stays with the class tokens.

        Raises:
            ApiError: 422 not_explainable: the graph shows no attention over patches.
        """
        session, names = self._opened
        maps = session.run(names, {"images": np.ascontiguousarray(images)})
        config = self._artifact.manifest.config
        grid = config["img_size"] // config["patch_size"]
        shares = patch_shares([np.asarray(m, np.float32) for m in maps], grid**2, config["depth"])
        if shares is None:
            raise not_explainable(self._artifact)
        return shares.reshape(-1, grid, grid)

    @cached_property
    def _opened(self) -> tuple[onnxruntime.InferenceSession, list[str]]:
        """The session, and the names of its softmax outputs."""
        graph = onnx.load_from_string(self._artifact.read(ONNX))
        names = [node.output[0] for node in graph.graph.node if node.op_type == "Softmax"]
        graph.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        if not names:
            raise not_explainable(self._artifact)
        try:  # one thread: predictions come first
            return open_session(graph.SerializeToString(), threads=1), names
        except ArtifactError as error:  # an arithmetic that the CPU does not know
            raise not_explainable(self._artifact) from error


def patch_shares(maps: Sequence[np.ndarray], patches: int, depth: int) -> np.ndarray | None:
    """What the head draws from each patch that entered the first layer.

    Args:
        maps: softmax outputs of a graph in order. (B, H, N, N) is attention over tokens and
            (B, H, 1, N) class attention; anything else, such as FAN's softmax over the tokens of
            each channel (B, N, C), mixes no tokens and is left out.
        patches: tokens that are patches; the others come first and are class tokens.
        depth: layers with attention over tokens.

    Returns:
        (B, patches), or None where the maps are not those of such a model.

    Source: Abnar & Zuidema 2020, section 3, R = A_L ... A_1 with A = (mean_h A_h + I) / 2; class
    attention as a layer whose other tokens stay, as `models.analysis.diagnostics` has it.
    """
    layers = [m.mean(1) for m in maps if m.ndim == 4 and m.shape[2] == m.shape[3] >= patches]
    heads = [m.mean(1) for m in maps if m.ndim == 4 and m.shape[2] == 1 < m.shape[3]]
    if len(layers) != depth or len({layer.shape for layer in layers}) != 1:
        return None
    batch, tokens = layers[0].shape[:2]
    class_tokens = tokens - patches
    if any(head.shape[2] != tokens + 1 for head in heads) or not (class_tokens or heads):
        return None
    if heads:
        weights = _class_rollout(heads)
    else:
        weights = np.zeros((batch, 1, tokens), np.float32)
        weights[..., :class_tokens] = 1 / class_tokens
    for layer in reversed(layers):
        weights = (weights + weights @ layer) / 2
    return weights[:, 0, class_tokens:]


def to_picture(shares: np.ndarray, height: int, width: int) -> bytes:
    """An 8-bit grey PNG of a map (h, w): the most attended pixel white, the least black."""
    patches = Image.fromarray(shares.astype(np.float32))
    smooth = np.asarray(patches.resize((width, height), Image.Resampling.BILINEAR))
    span = float(smooth.max() - smooth.min())
    # Attention that is the same everywhere has no least attended place.
    scaled = (smooth - smooth.min()) / span if span > 0 else np.ones_like(smooth)
    stream = io.BytesIO()
    Image.fromarray(np.rint(scaled * 255).astype(np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def not_explainable(artifact: Artifact) -> ApiError:
    """The refusal to explain a model without attention over patches."""
    message = f"The model {artifact.name!r} has no attention over patches to show."
    return ApiError(422, "not_explainable", message)


def _class_rollout(heads: Sequence[np.ndarray]) -> np.ndarray:
    """Rollout of class attention: maps (B, 1, 1 + N) to weights (B, 1, N) of the tokens."""
    first = np.zeros_like(heads[0])
    first[..., 0] = 1
    weights = first
    for head in reversed(heads):
        own = weights[..., :1]  # what still sits on the class token
        weights = weights + own * (head - first) / 2
    return weights[..., 1:]

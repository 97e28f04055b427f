"""What every peer computes: image files through our preprocessing and the artifact's ONNX file.

It runs in a peer's environment, which has NumPy, Pillow and ONNX Runtime and neither torch nor
BentoML. Decoding takes every core, as ours does, and so does ONNX Runtime as it comes.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime

from data.images import ImageSpec, decode_image, to_input


class Graph:
    """The graph of an artifact's folder on ONNX Runtime with its default options."""

    def __init__(self, folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        self.labels: list[str] = manifest["labels"]
        self._spec = ImageSpec(**manifest["preprocessing"])
        self._session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
        )
        self._decoders = ThreadPoolExecutor(len(os.sched_getaffinity(0)))

    def inputs(self, files: Sequence[bytes]) -> np.ndarray:
        """(B, C, H, W) of image files."""
        return np.stack(list(self._decoders.map(self._decode, files)))

    def logits(self, files: Sequence[bytes]) -> np.ndarray:
        """(B, K) of image files."""
        [logits] = self._session.run(["logits"], {"images": self.inputs(files)})
        return np.asarray(logits)

    def best(self, logits: np.ndarray) -> list[dict[str, object]]:
        """Five labels with the highest probability of each row, as our answers list them."""
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        probs = shifted / shifted.sum(axis=1, keepdims=True)
        return [
            {"top_k": [{"label": self.labels[i], "probability": float(row[i])} for i in order]}
            for row, order in zip(probs, np.argsort(-probs, axis=1)[:, :5], strict=True)
        ]

    def _decode(self, content: bytes) -> np.ndarray:
        return to_input(decode_image(content), self._spec)

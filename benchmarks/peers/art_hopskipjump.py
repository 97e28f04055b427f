"""Runs ART's HopSkipJump, image by image, in its own environment: NumPy, ONNX Runtime and ART.

`python -m benchmarks.peers.art_hopskipjump CASE.npz FOUND.npz` reads images, labels, the graph's
file, the norm, the queries of an image and the seed, and writes for each image the distance of the
nearest misclassified input that ART asked about within so many queries, the seconds of processor
time that it took, those of the model among them, and how often the model was called.
The classifier is the ONNX file on ONNX Runtime, one thread, and answers with classes alone.
"""

import sys
import time

import numpy as np
import onnxruntime
from art.attacks.evasion import (  # pyright: ignore[reportMissingImports]  # in its own environment
    HopSkipJump,
)
from art.estimators.classification import (  # pyright: ignore[reportMissingImports]
    BlackBoxClassifier,
)


class Spent(Exception):
    """All queries of an image are asked."""


class Asked:
    """Answers ART's queries about one image and keeps the nearest misclassified input."""

    def __init__(self, session: onnxruntime.InferenceSession, order: float, queries: int) -> None:
        self._session, self._order, self._queries = session, order, queries

    def begin(self, image: np.ndarray, label: int) -> None:
        """Attack another image (C, H, W)."""
        self._image, self._label = image, label
        self.left, self.nearest = self._queries, np.inf
        self.inside, self.calls = 0.0, 0

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """One-hot classes (n, K).

        Raises:
            Spent: there are no queries left for all of them; those that are left are answered.
        """
        images = images[: self.left].astype(np.float32)
        if not len(images):
            raise Spent
        start = time.process_time()
        logits = np.asarray(self._session.run(["logits"], {"images": images})[0])
        self.inside += time.process_time() - start
        self.calls += 1
        classes = logits.argmax(1)
        self.left -= len(images)
        changes = (images - self._image).reshape(len(images), -1)[classes != self._label]
        if len(changes):
            sizes = np.linalg.norm(changes.astype(np.float64), self._order, axis=1)
            self.nearest = min(self.nearest, sizes.min())
        if not self.left:
            raise Spent
        return np.eye(logits.shape[1], dtype=np.float32)[classes]


def main(case: str, output: str) -> None:
    """Attack every image of a case."""
    given = np.load(case)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    graph = str(given["graph"])
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    order = np.inf if str(given["norm"]) == "Linf" else 2
    asked = Asked(session, order, int(given["queries"]))
    num_classes = session.get_outputs()[0].shape[1]
    shape = given["images"].shape[1:]
    classifier = BlackBoxClassifier(asked, shape, num_classes, clip_values=(0.0, 1.0))
    attack = HopSkipJump(classifier, norm=order, max_iter=10_000, verbose=False)
    # ART draws from NumPy's global generator; its starts from one that cannot be seeded.
    np.random.seed(int(given["seed"]))
    distances, seconds, inside, calls = [], [], [], []
    for image, label in zip(given["images"], given["labels"], strict=True):
        asked.begin(image, int(label))
        start = time.process_time()
        try:
            attack.generate(image[None])
        except Spent:
            pass
        seconds.append(time.process_time() - start)
        inside.append(asked.inside)
        calls.append(asked.calls)
        distances.append(asked.nearest)
    np.savez(output, distances=distances, seconds=seconds, inside=inside, calls=calls)


if __name__ == "__main__":
    main(*sys.argv[1:])

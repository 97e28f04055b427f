"""LitServe over an artifact, started by `benchmarks.peers.running`."""

import sys
from pathlib import Path

import litserve  # pyright: ignore[reportMissingImports]  # it lives in its own environment
import numpy as np
import onnxruntime
from starlette.requests import Request

from benchmarks.peers.graph import Graph


class Classifier(litserve.LitAPI):
    """Classifies one image file a request."""

    def __init__(self, folder: Path, batch: int, wait: float) -> None:
        super().__init__(max_batch_size=batch, batch_timeout=wait, api_path="/classify")
        self._folder = folder

    def setup(self, device: str) -> None:
        """Open the graph, in the worker."""
        self._graph = Graph(self._folder)

    def decode_request(self, request: Request) -> bytes:
        """The file's bytes; decoding them together is faster, see `predict`."""
        # LitServe reads the annotation: for a request it hands over what the form held.
        return request["images"].file.read()

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        """Leave the files as they are."""
        return inputs

    def predict(self, x: list[bytes]) -> np.ndarray:
        """Logits (B, K)."""
        return self._graph.logits(x)

    def unbatch(self, output: np.ndarray) -> list[dict[str, object]]:
        """The prediction of each."""
        return self._graph.best(output)

    def encode_response(self, output: dict[str, object]) -> dict[str, object]:
        """The prediction, as it is."""
        return output


class Tensors(litserve.LitAPI):
    """The graph itself: one image of numbers a request in JSON, its logits out."""

    def __init__(self, folder: Path, batch: int, wait: float) -> None:
        super().__init__(max_batch_size=batch, batch_timeout=wait)
        self._path = str(folder / "model.onnx")

    def setup(self, device: str) -> None:
        """Open the graph, in the worker."""
        self._session = onnxruntime.InferenceSession(self._path, providers=["CPUExecutionProvider"])

    def decode_request(self, request: dict[str, object]) -> np.ndarray:
        """An image (C, H, W)."""
        return np.asarray(request["image"], np.float32)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Logits (B, K) of images (B, C, H, W)."""
        return np.asarray(self._session.run(["logits"], {"images": x})[0])

    def encode_response(self, output: np.ndarray) -> dict[str, object]:
        """The logits of one."""
        return {"logits": output.tolist()}


def main(api: str, folder: str, port: str, batch: str, wait: str) -> None:
    """Serve until a signal, batches of so many that wait for company so many seconds."""
    kind = {"classifier": Classifier, "tensors": Tensors}[api]
    server = litserve.LitServer(
        kind(Path(folder), int(batch), float(wait)), accelerator="cpu", fast_queue=True
    )
    server.run(host="127.0.0.1", port=int(port), generate_client_file=False, log_level="error")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""LitServe over an artifact, started by `benchmarks.peers.running`."""

import argparse
from pathlib import Path

import litserve  # pyright: ignore[reportMissingImports]  # it lives in its own environment
import numpy as np
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


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--batch", type=int, required=True, help="requests in a batch at most")
    parser.add_argument("--wait", type=float, required=True, help="seconds to wait for company")
    options = parser.parse_args()
    classifier = Classifier(options.folder, options.batch, options.wait)
    server = litserve.LitServer(classifier, accelerator="cpu", fast_queue=True)
    server.run(host="127.0.0.1", port=options.port, generate_client_file=False, log_level="error")


if __name__ == "__main__":
    main()

"""MLServer's model over an artifact; its settings are written by `benchmarks.peers.running`."""

import asyncio
import base64
import json
from pathlib import Path

import mlserver  # pyright: ignore[reportMissingImports]  # it lives in its own environment
import numpy as np
import onnxruntime
from mlserver.codecs import NumpyCodec  # pyright: ignore[reportMissingImports]
from mlserver.types import (  # pyright: ignore[reportMissingImports]
    InferenceRequest,
    InferenceResponse,
    ResponseOutput,
)

from benchmarks.peers.graph import Graph


class Tensors(mlserver.MLModel):
    """The graph itself: an artifact's tensors in, its logits out."""

    async def load(self) -> bool:
        """Open the graph."""
        path = str(Path(self.settings.parameters.uri) / "model.onnx")
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """The logits of a batch of requests, off the event loop."""
        given = {one.name: NumpyCodec.decode_input(one) for one in payload.inputs}
        found = await asyncio.to_thread(self._session.run, ["logits"], given)
        logits = NumpyCodec.encode_output("logits", np.asarray(found[0]))
        return InferenceResponse(model_name=self.name, outputs=[logits])


class Classifier(mlserver.MLModel):
    """Classifies image files, one or several a request."""

    async def load(self) -> bool:
        """Open the graph."""
        self._graph = Graph(Path(self.settings.parameters.uri))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """The predictions of a batch of requests, off the event loop."""
        files = [base64.b64decode(text) for text in payload.inputs[0].data]
        logits = await asyncio.to_thread(self._graph.logits, files)
        best = [json.dumps(prediction) for prediction in self._graph.best(logits)]
        output = ResponseOutput(
            name="predictions", shape=[len(best), 1], datatype="BYTES", data=best
        )
        return InferenceResponse(model_name=self.name, outputs=[output])

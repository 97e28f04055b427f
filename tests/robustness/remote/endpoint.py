"""A small server of the protocol V2 over a socket, which fails as it is told to."""

import json
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

Scores = Callable[..., np.ndarray]
Reply = tuple[int, dict[str, str], bytes]


@dataclass
class Endpoint:
    """What a server does; tests change it while it runs.

    `answers` gives (N, K) scores, or (N,) classes, of images or of texts; `reply` takes the place
    of an answer to an inference where it returns one; `other` speaks another protocol.
    """

    answers: Scores
    shape: list[int]
    datatype: str = "FP32"
    output: dict[str, Any] = field(
        default_factory=lambda: {"name": "logits", "datatype": "FP32", "shape": [-1, -1]}
    )
    beside: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # further inputs
    extensions: tuple[str, ...] = ("binary_tensor_data",)
    labels: list[str] = field(default_factory=list[str])
    parameters: dict[str, str] = field(default_factory=dict[str, str])
    reply: Callable[["Endpoint"], Reply | None] = lambda _: None
    other: Callable[[str, Any, bytes], Any] | None = None
    url: str = ""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list[Any])
    seen: Counter[bytes] = field(default_factory=Counter[bytes])
    sizes: list[int] = field(default_factory=list[int])
    running: int = 0
    most: int = 0

    def describe(self, path: str) -> Any:
        if path == "/v2":
            return {"name": "foreign", "version": "7", "extensions": list(self.extensions)}
        given = {"name": "x", "datatype": self.datatype, "shape": self.shape}
        about = {
            "name": "m",
            "platform": "p",
            "inputs": [given, *self.beside],
            "outputs": [self.output],
        }
        return about | {"parameters": self.parameters}

    def infer(self, head: bytes, raw: bytes) -> Reply:
        asked = json.loads(head)
        tensors, [wanted] = asked["inputs"], asked["outputs"]
        several = [self._inputs(tensor, raw) for tensor in tensors]
        inputs = several[0]
        parameters = wanted.get("parameters", {})
        if "classification" in parameters:
            words = [f"0.1:{i}:{label}" for i, label in enumerate(self.labels)]
            output = {"name": "logits", "datatype": "BYTES", "shape": [1, len(words)]}
            return 200, {}, json.dumps({"outputs": [output | {"data": words}]}).encode()
        for one in inputs:
            self.seen[one.tobytes() if isinstance(one, np.ndarray) else one.encode()] += 1
        self.sizes.append(len(inputs))
        values = np.asarray(self.answers(*several))
        kind, dtype = self.output["datatype"], {"FP32": "<f4", "INT64": "<i8"}
        output = {"name": self.output["name"], "datatype": kind, "shape": list(values.shape)}
        if not parameters.get("binary_data"):
            content = {"outputs": [output | {"data": values.ravel().tolist()}]}
            return 200, {"content-type": "application/json"}, json.dumps(content).encode()
        body = values.astype(dtype[kind]).tobytes()
        output["parameters"] = {"binary_data_size": len(body)}
        text = json.dumps({"outputs": [output]}).encode()
        return 200, {"inference-header-content-length": str(len(text))}, text + body

    def _inputs(self, tensor: dict[str, Any], raw: bytes) -> Any:
        if self.datatype == "BYTES":
            if "data" in tensor:
                return tensor["data"]
            texts, place = [], 0
            while place < len(raw):
                (size,) = struct.unpack_from("<I", raw, place)
                texts.append(raw[place + 4 : place + 4 + size].decode())
                place += 4 + size
            return texts
        dtype = {"FP32": "<f4", "UINT8": "|u1", "INT64": "<i8"}[self.datatype]
        values = np.array(tensor["data"], dtype) if "data" in tensor else np.frombuffer(raw, dtype)
        return values.reshape(tensor["shape"])


class Handler(BaseHTTPRequestHandler):
    """Answers at once: head and body are two packets, and the second waits for nobody."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Takes many connections at once."""

    daemon_threads = True
    request_queue_size = 64


class _Handler(Handler):
    endpoint: Endpoint

    def do_GET(self) -> None:
        self._send(200, {}, json.dumps(self.endpoint.describe(self.path)).encode())

    def do_POST(self) -> None:
        endpoint = self.endpoint
        endpoint.requests.append((self.path, dict(self.headers)))
        body = self.rfile.read(int(self.headers["content-length"]))
        length = int(self.headers.get("inference-header-content-length", len(body)))
        endpoint.running += 1
        endpoint.most = max(endpoint.most, endpoint.running)
        reply = endpoint.reply(endpoint)
        try:
            if reply is None and endpoint.other is not None:
                answer = endpoint.other(self.path, self.headers, body)
                reply = 200, {"content-type": "application/json"}, json.dumps(answer).encode()
            reply = reply or endpoint.infer(body[:length], body[length:])
        except Exception as error:
            reply = 500, {}, repr(error).encode()
        with suppress(OSError):
            self._send(*reply)
        endpoint.running -= 1

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in ({"content-length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def listening(endpoint: Endpoint) -> Iterator[Endpoint]:
    """The endpoint at a free port."""
    handler = type("Handler", (_Handler,), {"endpoint": endpoint})
    with served(handler) as url:
        endpoint.url = url
        yield endpoint


@contextmanager
def served(handler: type[Handler]) -> Iterator[str]:
    """The address of a server at a free port."""
    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

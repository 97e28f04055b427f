"""Starts a peer on an artifact, in its own environment, with its own batching on.

Both read the same files through our preprocessing and run the same ONNX file on ONNX Runtime with
its default options, see `benchmarks.peers.graph`. What else they can be told was tried at 16
connections on two cores, and nothing was clearly faster than this:

- LitServe: batches of up to 16, waiting 5 ms for company; its fast queue; one worker, as two would
  share the cores. It reads the same form as ours.
- MLServer: batches of up to 16, waiting 5 ms for company; no pool of workers, the graph runs in a
  thread of the server; no gzip, no metrics, no debugging. Its REST surface has neither forms nor
  binary tensors, so that a file comes as base64 in JSON.
"""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.support.load import form_request, json_request
from benchmarks.support.server import ROOT, end, free_port, wait_until_ready

MODEL = "deit-tiny"
BATCH = 16
WAIT_S = 0.005
_ENVIRONMENTS = ROOT / "build" / "peers"
_MLSERVER = "benchmarks.peers.mlserver_model"
_LOCKS = ROOT / "requirements" / "peers"


@dataclass(frozen=True, slots=True)
class Peer:
    """A system that ours is compared with.

    Attributes:
        name: of its lock and its environment.
        title: how it is called.
        path: what tells that it is ready.
        request: a complete HTTP request of an image file.
        command: what starts it, from its Python, the artifact's folder, a port and a folder.
    """

    name: str
    title: str
    path: str
    request: Callable[[bytes], bytes]
    command: Callable[[Path, Path, int, Path], Sequence[str]]


def environment(name: str) -> Path:
    """Python of a peer's environment; it is made from its lock when missing or outdated."""
    folder, lock = _ENVIRONMENTS / name, _LOCKS / f"{name}.txt"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    stamp, python = folder / "lock.sha256", folder / "bin" / "python"
    if not stamp.is_file() or stamp.read_text() != digest:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*install, "-r", str(lock)], check=True, stderr=subprocess.DEVNULL)
        stamp.write_text(digest)
    return python


def packages(name: str) -> Path:
    """Where the packages of a peer's environment lie; see `environment`."""
    return next(environment(name).parents[1].glob("lib/python*/site-packages"))


@contextmanager
def serving_peer(peer: Peer, artifact: Path) -> Iterator[tuple[int, str]]:
    """Serve an artifact until the end of the block.

    Yields:
        The process's id, and the address.

    Raises:
        RuntimeError: it was not ready in time.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = peer.command(environment(peer.name), artifact, port, Path(folder))
        # Our preprocessing is imported from here; nothing else of ours needs more than a peer has.
        own = {"PYTHONPATH": str(ROOT)}
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=folder, env=os.environ | own, stdout=output, stderr=output
            )
        try:
            wait_until_ready(process, f"http://127.0.0.1:{port}", peer.path)
            yield process.pid, f"http://127.0.0.1:{port}"
        except RuntimeError as error:
            raise RuntimeError(f"{peer.title}: {error}: {log.read_text()[-2000:]}") from error
        finally:
            end(process)


def _litserve(
    python: Path, artifact: Path, port: int, _: Path, api: str = "classifier"
) -> Sequence[str]:
    module = "benchmarks.peers.litserve_server"
    return [*map(str, (python, "-m", module, api, artifact, port, BATCH, WAIT_S))]


def _mlserver(
    python: Path, artifact: Path, port: int, folder: Path, about: Mapping[str, Any] | None = None
) -> Sequence[str]:
    server = {"host": "127.0.0.1", "http_port": port, "grpc_port": free_port()}
    server |= {"parallel_workers": 0, "debug": False, "gzip_enabled": False}
    server |= {"metrics_endpoint": None}
    model: dict[str, Any] = {"name": MODEL, "implementation": f"{_MLSERVER}.Classifier"}
    model |= {"max_batch_size": BATCH, "max_batch_time": WAIT_S}
    model |= {"parameters": {"uri": str(artifact)}, **(about or {})}
    (folder / "settings.json").write_text(json.dumps(server))
    (folder / "model-settings.json").write_text(json.dumps(model))
    return [str(python.parent / "mlserver"), "start", str(folder)]


def _mlserver_tensors(
    python: Path, artifact: Path, port: int, folder: Path, batch: int = BATCH
) -> Sequence[str]:
    manifest = json.loads((artifact / "manifest.json").read_text())
    given, taken = manifest["input"], manifest["output"]
    inputs = [_tensor(given)]
    if given.get("mask"):
        inputs.append(_tensor(given | {"name": given["mask"], "dtype": "bool"}))
    about: dict[str, Any] = {"name": manifest["name"], "inputs": inputs}
    about |= {"implementation": f"{_MLSERVER}.Tensors", "outputs": [_tensor(taken)]}
    about |= {"max_batch_size": batch, "max_batch_time": WAIT_S if batch else 0}
    return _mlserver(python, artifact, port, folder, about)


def _tensor(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A tensor of a manifest as MLServer describes it."""
    kind = {"float32": "FP32", "int64": "INT64", "bool": "BOOL"}[spec["dtype"]]
    return {"name": spec["name"], "datatype": kind, "shape": spec["shape"]}


def _mlserver_request(content: bytes) -> bytes:
    text = base64.b64encode(content).decode()
    tensor = {"name": "images", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
    return json_request(f"/v2/models/{MODEL}/infer", {"inputs": [tensor]})


PEERS = (
    Peer(
        name="litserve",
        title="LitServe",
        path="/health",
        request=lambda content: form_request("/classify", "photo", content),
        command=_litserve,
    ),
    Peer(
        name="mlserver",
        title="MLServer",
        path=f"/v2/models/{MODEL}/ready",
        request=_mlserver_request,
        command=_mlserver,
    ),
)

_MLSERVER_TENSORS = Peer(
    name="mlserver",
    title="MLServer",
    path="/v2/health/ready",
    request=_mlserver_request,
    command=_mlserver_tensors,
)
TENSORS = {
    "mlserver": _MLSERVER_TENSORS,
    "mlserver-single": replace(
        _MLSERVER_TENSORS,
        title="MLServer without batching",
        command=partial(_mlserver_tensors, batch=0),
    ),
    "litserve": replace(PEERS[0], command=partial(_litserve, api="tensors")),
}
"""The same two over the graph of any artifact alone: numbers in, logits out; MLServer also as it
comes, without batching of its own."""

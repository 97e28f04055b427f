"""`bentoml serve` in a process of its own."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from benchmarks.support.server import end, free_port
from deploy.image.__main__ import bentofile
from service.processes import family
from service.settings import ROOT
from tests.conftest import Once
from tests.service.conftest import wait_until

# One small model is enough, and is ready soon.
QUICK = {"ASSAY_MODELS": ROOT / "artifacts" / "fashion-dot", "ASSAY_RUNTIME": "onnx-cpu"}


class Server:
    """A running `bentoml serve`, and what it started."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = log

    def family(self) -> list[psutil.Process]:
        return family(self.process.pid)

    def ready(self) -> bool:
        if self.process.poll() is not None:
            pytest.fail(f"the server ended:\n{self.log.read_text()[-3000:]}")
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    def send(self, *parts: bytes, wait: float = 10.0, pause: float = 0.0) -> bytes:
        """What the server answers to some bytes, until it closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as connection:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
            received = bytearray()
            try:
                while chunk := connection.recv(65536):
                    received += chunk
            except ConnectionResetError:
                pass  # it has said what it had to say
            return bytes(received)

    def lines(self) -> list[dict[str, Any]]:
        """The log's whole lines: every one but those that Python's warnings write is JSON."""
        whole = self.log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]


def environment(home: Path, extra: Mapping[str, object]) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ASSAY_", "BENTOML_"))}
    own = {"BENTOML_HOME": home, "BENTOML_DO_NOT_TRACK": "True", "OMP_NUM_THREADS": "1"}
    quick = {"ASSAY_DRAIN_S": 0}  # no balancer looks before a server stops
    return clean | {name: str(value) for name, value in (own | quick | {**extra}).items()}


@contextmanager
def serve(
    target: str, *, cwd: Path, home: Path, wait: bool = True, **extra: object
) -> Iterator[Server]:
    """`bentoml serve TARGET` in `cwd`, ready by default; ended with all its processes."""
    port = free_port()
    command = [sys.executable, "-m", "bentoml", "serve", target, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--timeout-graceful-shutdown", "5"]
    log = home.parent / f"{home.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment(home, extra), stdout=output, stderr=subprocess.STDOUT
        )
    server = Server(process, port, log)
    try:
        if wait and not wait_until(server.ready, seconds=180):
            pytest.fail(f"the server is not ready:\n{log.read_text()[-3000:]}")
        yield server
    finally:
        end(process)


def built_bento(once: Once, flavour: str = "cpu") -> Path:
    """The folder of a bento, built once a session."""

    def fill(home: Path) -> None:
        (home / "bentofile.yaml").write_text(bentofile(flavour))
        command = [sys.executable, "-m", "bentoml", "build", "."]
        command += ["--bentofile", str(home / "bentofile.yaml")]
        ended = subprocess.run(
            command, cwd=ROOT, env=environment(home, {}), capture_output=True, timeout=120
        )
        assert ended.returncode == 0, ended.stderr

    (described,) = once(f"bento-{flavour}", fill).glob("bentos/assay/*/bento.yaml")
    return described.parent

"""A real server for benchmarks: started on a free port with its own state, ended by its pid."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).parent.parent
_READY_S = 60
_STOP_S = 30


@contextmanager
def serving() -> Iterator[str]:
    """Serve the project and wait until it is ready.

    Yields:
        The address, such as "http://127.0.0.1:4711".

    Raises:
        RuntimeError: it was not ready in time.
    """
    with tempfile.TemporaryDirectory() as state, started(state) as (process, address):
        wait_until_ready(process, address)
        yield address


def wait_until_ready(process: subprocess.Popen[bytes], address: str) -> None:
    """Wait for `/readyz`.

    Raises:
        RuntimeError: the process ended, or time ran out.
    """
    deadline = time.monotonic() + _READY_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{address}/readyz", timeout=1).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.02)
    raise RuntimeError(f"the server was not ready within {_READY_S} s")


@contextmanager
def started(state: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start the server on a free port, without waiting; end it by its pid."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {"ASSAY_STATE": state, "BENTOML_HOME": f"{state}/bentoml"}
    environ["BENTOML_DO_NOT_TRACK"] = "True"
    command = [sys.executable, "-m", "bentoml", "serve", ".", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--timeout-graceful-shutdown", "5"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

"""A real server for benchmarks: started on a free port with its own state, ended by its pid."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from service.processes import family

ROOT = Path(__file__).parents[2]
_READY_S = 120
_SETTLED_S = 600
_STOP_S = 30
_CHANGED_S = 120
_SAMPLES = ROOT / "artifacts" / "samples" / "fashion-mnist"
Value = TypeVar("Value")


@contextmanager
def serving(
    settings: Mapping[str, str] | None = None, *, tree: Path = ROOT
) -> Iterator[tuple[int, str]]:
    """Serve the project and wait until every model has the runtime that it keeps.

    Args:
        settings: environment variables beside those of this process.
        tree: where the project lies.

    Yields:
        The id of the server's first process, and the address, such as "http://127.0.0.1:4711".

    Raises:
        RuntimeError: it was not ready in time.
    """

    def settled() -> bool:
        """Whether no model is measured any more."""
        models = httpx.get(f"{address}/v1/models", timeout=30).json()
        return not any(model["measuring"] for model in models)

    with (
        tempfile.TemporaryDirectory() as state,
        started(state, settings, tree) as (process, address),
    ):
        wait_until_ready(process, address)
        until(settled, _SETTLED_S, "models were still measured")
        yield process.pid, address


def wait_until_ready(process: subprocess.Popen[bytes], address: str, path: str = "/readyz") -> None:
    """Wait until a path is answered with 200.

    Raises:
        RuntimeError: the process ended, or time ran out.
    """

    def ready() -> bool:
        """Whether it says so."""
        if process.poll() is not None:
            raise RuntimeError("the server ended")
        with suppress(httpx.TransportError):
            return httpx.get(f"{address}{path}", timeout=1).status_code == 200
        return False

    until(ready, _READY_S, "the server was not ready", every=0.02)


def until(
    answer: Callable[[], Value | None], seconds: float, complaint: str, *, every: float = 0.1
) -> Value:
    """Ask again and again until the answer is truthy, and return it.

    Raises:
        RuntimeError: it was not in time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := answer():
            return found
        time.sleep(every)
    raise RuntimeError(f"{complaint} within {seconds:g} s")


@contextmanager
def started(
    state: str, settings: Mapping[str, str] | None = None, tree: Path = ROOT
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start the server at a free port, without waiting; end it by its pid.

    Args:
        state: where it keeps its state.
        settings: environment variables beside those of this process.
        tree: where the project lies.
    """
    port = free_port()
    process = start(state, settings or {}, port, tree)
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        end(process)


def start(
    state: str, settings: Mapping[str, str], port: int, tree: Path = ROOT
) -> subprocess.Popen[bytes]:
    """Start the server; whoever calls ends it."""
    environ = {"ASSAY_STATE": state, "BENTOML_HOME": f"{state}/bentoml"}
    environ |= {"BENTOML_DO_NOT_TRACK": "True", **settings}
    command = [sys.executable, "-m", "bentoml", "serve", ".", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--timeout-graceful-shutdown", "5"]
    return subprocess.Popen(
        command,
        cwd=tree,
        env=os.environ | environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end; kill it, and what it started, when it does not."""
    processes = family(process.pid)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, left = psutil.wait_procs(processes, timeout=5)
    for one in left:
        with suppress(psutil.NoSuchProcess):
            one.kill()


def pss(pid: int) -> float:
    """Memory of a process and all that it started in MiB, what they share counted once (PSS)."""
    total = 0
    for process in family(pid):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / 2**20


def pause(pid: int) -> None:
    """Hold a process and all that it started still: some poll while they are idle."""
    for process in family(pid):
        with suppress(psutil.NoSuchProcess):
            process.suspend()


def resume(pid: int) -> None:
    """Let them go on."""
    for process in family(pid):
        with suppress(psutil.NoSuchProcess):
            process.resume()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def sample_files() -> list[tuple[str, bytes]]:
    """Names and contents of the shipped sample images."""
    return [(path.name, path.read_bytes()) for path in sorted(_SAMPLES.rglob("*.png"))]


def start_evaluation(address: str, spec: Mapping[str, Any], *, samples: int | None = None) -> str:
    """Send an evaluation of the first sample images, or of all; returns its address."""
    images = [("images", file) for file in sample_files()[:samples]]
    url, form = f"{address}/v1/evaluations", {"spec": json.dumps(spec)}
    answer = httpx.post(url, data=form, files=images, timeout=60).raise_for_status()
    return f"{address}{answer.headers['location']}"


def wait_for(location: str, done: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until an evaluation is in some state.

    Raises:
        RuntimeError: it was not in time.
    """
    until(lambda: done(httpx.get(location).json()), _CHANGED_S, "the evaluation did not change")

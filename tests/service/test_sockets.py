"""Which sockets a server opens, and who may use them."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bentoml
import psutil
import pytest
from circus.client import CircusClient

from service.manager import SOCKETS
from service.settings import ROOT, Settings
from service.start import open_run_folder
from tests.service.server import QUICK, Server, serve

NOBODY = 65534
CONNECT_AS_NOBODY = f"""
import os, socket, sys
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
for path in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
    except PermissionError:
        print("refused")
    else:
        print("connected")
"""


@pytest.fixture(scope="module")
def run() -> Iterator[Path]:
    with TemporaryDirectory(prefix="a") as short:  # the path of a socket is short
        os.chmod(short, 0o755)  # every user may enter
        yield Path(short) / "run"


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of every role, whose temporary folder everybody may enter."""
    folder = tmp_path_factory.mktemp("sockets")
    options: dict[str, Any] = {**QUICK, "ASSAY_RUN": run, "TMPDIR": run.parent}
    with serve(str(ROOT), cwd=folder, home=folder / "home", **options) as running:
        yield running


def sockets(server: Server) -> list[str]:
    """The paths of all Unix sockets that have one."""
    found = (c.laddr for process in server.family() for c in process.net_connections("unix"))
    return sorted({str(path) for path in found if path})


def test_only_http_listens_on_tcp(server: Server) -> None:
    assert bentoml.__version__ == "1.4.39", "see `manage_workers` before you upgrade"
    connections = [c for process in server.family() for c in process.net_connections("inet")]
    listening = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
    assert listening == {server.port}
    assert not [c for c in connections if c.type == socket.SOCK_DGRAM]


def test_every_other_socket_lies_in_the_private_folder(server: Server, run: Path) -> None:
    control, events = (str(run / name) for name in SOCKETS)
    evaluator = [path for path in sockets(server) if path not in (control, events)]
    assert {control, events, *evaluator} == set(sockets(server))
    assert evaluator and all(path.startswith(f"{run}/bentoml-uds-") for path in evaluator)
    assert run.stat().st_mode & 0o777 == 0o700
    client = CircusClient(endpoint=f"ipc://{control}", timeout=10)
    answer: Any = client.call({"command": "list", "properties": {}})
    assert answer["status"] == "ok"  # for this user
    client.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_reaches_no_socket(server: Server) -> None:
    paths = sockets(server)
    command = [sys.executable, "-c", CONNECT_AS_NOBODY, *paths]
    asked = subprocess.run(command, capture_output=True, text=True)
    assert asked.stdout.split() == ["refused"] * len(paths), asked.stderr


def test_state_is_for_nobody_else(server: Server) -> None:
    state = server.log.parent / "state"
    for path in [state, *state.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_next_start_removes_what_a_killed_server_left(
    server: Server, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, left = server.family(), sockets(server)
    server.process.kill()
    server.process.wait(10)
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    assert left and all(Path(path).is_socket() for path in left)
    monkeypatch.setattr("atexit.register", lambda *_: None)
    assert open_run_folder(Settings(run=run)) == run
    assert not any(Path(path).exists() for path in left)

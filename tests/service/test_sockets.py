"""Which sockets a server opens, who may use them, and what a full disk leaves it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bentoml
import httpx
import psutil
import pytest
from circus.client import CircusClient

from service.manager import SOCKETS
from service.settings import ROOT, Settings
from service.start import open_run_folder
from tests.service.conftest import png
from tests.service.server import QUICK, Server, serve
from tests.service.test_full_disk import fill, small_disk

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
def disk() -> Iterator[tuple[Path, bool]]:
    """A folder that every user may enter; whether it is a small disk."""
    with TemporaryDirectory(prefix="a") as short:  # the path of a socket is short
        os.chmod(short, 0o755)
        with small_disk(short, mode=755) as mounted:
            yield Path(short), mounted


@pytest.fixture(scope="module")
def run(disk: tuple[Path, bool]) -> Path:
    return disk[0] / "run"


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of every role, which writes to that disk alone."""
    folder = tmp_path_factory.mktemp("sockets")
    options: dict[str, Any] = {**QUICK, "ASSAY_RUN": run, "TMPDIR": run.parent}
    options |= {"ASSAY_STATE": run.parent / "state", "ASSAY_FREE_MB": 0}
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


def test_state_is_for_nobody_else(server: Server, run: Path) -> None:
    state = run.parent / "state"
    assert (state / "assay.sqlite3").exists()
    for path in [state, *state.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_it_predicts_and_is_ready_when_its_disk_is_full(
    server: Server, disk: tuple[Path, bool]
) -> None:
    folder, mounted = disk
    if not mounted:
        pytest.skip("mounting a file system is not permitted here")
    fill(folder)
    for _ in range(2):
        files = {"images": png(size=28)}
        assert httpx.post(f"{server.url}/classify", files=files).status_code == 200
    spec = {"model": "fashion-dot", "attacks": [{"name": "fgsm", "eps": ["1/255"]}]}
    form = {"data": {"spec": json.dumps(spec)}, "files": {"images": png(size=28)}}
    refused = httpx.post(f"{server.url}/v1/evaluations", **form)
    assert (refused.status_code, refused.json()["error"]["code"]) == (507, "disk_full")
    assert httpx.get(f"{server.url}/readyz").status_code == 200
    log = server.log.read_text().splitlines()
    assert len(server.lines()) == len(log), log  # every line is JSON, the first ones too
    assert 'route="/v1/evaluations",status="507"' in httpx.get(f"{server.url}/metrics").text
    (folder / "filler").unlink()


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

"""BentoML's process manager runs commands for whoever reaches its sockets."""

import os
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

from service.settings import ROOT
from service.start import SOCKETS
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


@pytest.fixture
def parent() -> Iterator[Path]:
    """A short folder that every user may enter."""
    with TemporaryDirectory(prefix="a") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def _serve(parent: Path, tmp_path: Path) -> Any:
    options = {**QUICK, "ASSAY_RUN": parent / "run"}
    return serve(str(ROOT), cwd=tmp_path, home=tmp_path / "home", **options)


def _tcp_listeners(server: Server) -> set[int]:
    connections = [c for process in server.family() for c in process.net_connections("inet")]
    return {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}


def test_the_process_manager_listens_on_private_unix_sockets_only(
    parent: Path, tmp_path: Path
) -> None:
    assert bentoml.__version__ == "1.4.39", "see `use_private_sockets` before you upgrade"
    with _serve(parent, tmp_path) as server:
        assert _tcp_listeners(server) == {server.port}
        run = parent / "run"
        assert run.stat().st_mode & 0o777 == 0o700
        sockets = [str(run / name) for name in SOCKETS]
        assert all(Path(path).is_socket() for path in sockets)
        client = CircusClient(endpoint=f"ipc://{sockets[0]}", timeout=10)
        answer: Any = client.call({"command": "list", "properties": {}})
        assert answer["status"] == "ok"
        client.stop()
        if os.geteuid() == 0:
            command = [sys.executable, "-c", CONNECT_AS_NOBODY, *sockets]
            asked = subprocess.run(command, capture_output=True, text=True)
            assert asked.stdout.split() == ["refused", "refused"], asked.stderr
    assert not run.exists()


def test_a_killed_server_s_folder_is_removed_by_the_next(parent: Path, tmp_path: Path) -> None:
    with _serve(parent, tmp_path) as server:
        server.process.kill()
        server.process.wait()
    (parent / "run" / "left").write_text("behind")
    with _serve(parent, tmp_path) as server:
        assert not (parent / "run" / "left").exists()
    assert not (parent / "run").exists()

"""Servers that share a state, as processes."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from service.jobs.queue import JobStore
from service.settings import ROOT, Settings
from tests.service.jobs.postgres import emptied

_CODE = (
    "import sys; from service.start import claim_state; from service.settings import Settings\n"
    "from service.jobs.queue import JobStore\n"
    "try: claim_state(Settings()); JobStore(Settings().database_url).close()\n"
    "except ValueError as error: sys.exit(f'Assay cannot start: {error}')\n"
    "print('ready', flush=True); sys.stdin.read()"
)


def server(state: Path, role: str, **more: str) -> subprocess.Popen[str]:
    """A server that claims its state and runs until its input ends."""
    return subprocess.Popen(
        [sys.executable, "-c", _CODE],
        cwd=ROOT,
        env={"ASSAY_STATE": str(state), "ASSAY_ROLE": role, **more},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_a_state_has_one_server_of_each_role_until_it_dies(tmp_path: Path) -> None:
    with server(tmp_path, "predict") as first, server(tmp_path, "evaluate") as second:
        assert said(first) == said(second) == "ready\n"
        with server(tmp_path, "all") as third:
            words = said(third)
        assert "Assay cannot start: another server uses this ASSAY_STATE to predict" in words
        assert "PostgreSQL" in words
        first.kill()
        first.wait()
        with server(tmp_path, "predict") as fourth:
            assert said(fourth) == "ready\n"


def test_postgresql_has_any_number_of_servers(tmp_path: Path, postgresql_server: str) -> None:
    given = {"ASSAY_DATABASE": emptied(postgresql_server)}
    with server(tmp_path, "all", **given) as first, server(tmp_path, "all", **given) as second:
        assert said(first) == said(second) == "ready\n"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("postgresql://me:s3cret@127.0.0.1:1/assay", "127.0.0.1, database assay.*cannot be used"),
        ("postgresql://me:s3cret@127.0.0.1:port/assay", "must be a URL"),
        ("mysql://me:s3cret@localhost/assay", "must be a URL"),
        ("s3cret", "must be a URL"),
        ("sqlite:///s3cret.sqlite3", "absolute path"),
        ("sqlite:////dev/null/x.sqlite3", "cannot be opened: .*"),
    ],
)
def test_an_unusable_database_is_named_without_its_password(
    tmp_path: Path, address: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        JobStore(Settings(state=tmp_path, database=SecretStr(address)).database_url)
    assert "s3cret" not in str(refused.value)

"""A cancelled evaluation ends whatever its process does, and leaves nothing behind."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from service.jobs import process
from service.processes import family
from tests.service.conftest import wait_until
from tests.service.front import Front
from tests.service.jobs.test_worker import SHORT, child_of

NATIVE = f"""{sys.executable} -c 'import re; re.match("(a+)+$", "a" * 64 + "b")'"""
# What stands in the place of Python, with the arguments of an evaluation.
STUCK = {
    "it has not started yet": "sleep 60",
    "it is stopped": "kill -STOP $$",
    "it ignores SIGTERM": "trap '' TERM; while :; do sleep 0.1; done",
    "it computes in native code": NATIVE,
    "it has started others": "sleep 60 & setsid sleep 60 & sleep 60",
}


def started_by(pid: int, what: str) -> list[psutil.Process]:
    """An evaluation's process and all others that it starts, once they run."""
    count = {"it is stopped": 1, "it has started others": 4}.get(what, 2)
    return wait_until(lambda: (found := family(pid)) and len(found) >= count and found)


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("what", STUCK)
def test_it_is_ended_from_outside_with_all_that_it_started(
    front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n# $*\n{STUCK[what]}\ntrue\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setattr(process, "_GRACE_S", 0.2)
    monkeypatch.setattr(process, "_STOP_S", 0.2)
    stuck, following = front.submit(SHORT, count=2), front.submit(SHORT, count=2, seed=1)
    with front.evaluator():
        assert (child := wait_until(lambda: child_of(stuck)))
        processes = started_by(child, what)
        front.store.request_cancel(stuck)
        assert wait_until(lambda: front.job(stuck).status == "cancelled", seconds=10)
        assert wait_until(lambda: not any(map(lives, processes)), seconds=2)
        assert wait_until(lambda: child_of(following))


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that compute all the time."""
    code = "import time\nwhile time.monotonic() < float(__import__('sys').argv[1]): pass"
    command = [sys.executable, "-c", code, str(time.monotonic() + 30)]
    loops = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def test_it_is_ended_while_it_starts_on_a_busy_host(front: Front) -> None:
    job_id = front.submit(SHORT)
    with busy(2), front.evaluator():
        assert wait_until(lambda: child_of(job_id))
        front.store.request_cancel(job_id)
        assert wait_until(lambda: front.job(job_id).status == "cancelled", seconds=8)
    assert child_of(job_id) is None

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from service.settings import ROOT, Settings
from service.start import open_run_folder, prepare_state
from tests.service.conftest import wait_until

KILLED = """
import os, signal
from pathlib import Path
from service.settings import Settings
from service.start import open_run_folder
folder = open_run_folder(Settings())
(folder / "left").write_text("behind")
print(folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with TemporaryDirectory(prefix="a") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr("tempfile.tempdir", None)
        monkeypatch.setattr("atexit.register", lambda *_: None)
        yield Path(folder)


def test_each_run_has_a_private_folder_and_removes_those_of_killed_runs(temporary: Path) -> None:
    command = [sys.executable, "-c", KILLED]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    assert Path(killed).parent == temporary and Path(killed).is_dir()
    (temporary / "assay-other").mkdir()  # without our lock
    folders = {open_run_folder(Settings()) for _ in range(2)}
    assert len(folders) == 2 and not Path(killed).exists()
    assert set(temporary.iterdir()) == {*folders, temporary / "assay-other"}
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)


def test_a_named_folder_is_used_by_one_run_and_holds_nothing_else(temporary: Path) -> None:
    settings = Settings(run=temporary / "run")
    environment = {**os.environ, "ASSAY_RUN": str(settings.run)}
    subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, env=environment)
    assert (temporary / "run" / "left").is_file()
    assert open_run_folder(settings) == temporary / "run"
    assert not (temporary / "run" / "left").exists()
    with pytest.raises(ValueError, match="another server uses this ASSAY_RUN"):
        open_run_folder(settings)
    (temporary / "full").mkdir()
    (temporary / "full" / "mine").write_text("kept")
    (temporary / "link").symlink_to(temporary / "full")
    for name, message in (
        ("full", "new or empty"),
        ("link", "belongs to this user"),
        ("x" * 100, "at most [0-9]+ bytes"),
    ):
        with pytest.raises(ValueError, match=message):
            open_run_folder(Settings(run=temporary / name))
    assert (temporary / "full" / "mine").read_text() == "kept"


def test_a_state_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="ASSAY_STATE=/proc/nothing must be a folder to write in"):
        prepare_state(Settings(state=Path("/proc/nothing")))


_CHILD = """
import signal, sys, time
from core.starter import end_with_starter
from service.processes import watch_parent
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True) if {stubborn} else sys.exit())
{watch}
print("watching", flush=True)
time.sleep(60)
"""
_PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
time.sleep(60)
"""


def _family(watch: str, *, stubborn: bool = True) -> "tuple[subprocess.Popen[bytes], int]":
    """A process that has started another, which watches it, and the other's id."""
    command = [sys.executable, "-c", _PARENT, _CHILD.format(watch=watch, stubborn=stubborn)]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    lines = {parent.stdout.readline().strip() for _ in range(2)}
    assert b"watching" in lines
    return parent, int((lines - {b"watching"}).pop())


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_process_ends_soon_after_its_parent_was_killed(stubborn: bool) -> None:
    parent, _ = _family("watch_parent(grace=0.5)", stubborn=stubborn)
    with parent:
        parent.kill()
        # The child holds the other end of the pipe: all is read when it is gone.
        rest, _ = parent.communicate(timeout=20)
    assert rest == (b"asked\n" if stubborn else b"")


def test_a_parent_that_died_before_the_watch_began_is_noticed() -> None:
    late = _CHILD.format(watch="watch_parent(parent=999999999, grace=0)", stubborn=False)
    assert subprocess.run([sys.executable, "-c", late], cwd=ROOT, timeout=30).returncode == -9


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal is Linux's")
def test_the_kernel_ends_a_process_that_stands_still() -> None:
    parent, child = _family("end_with_starter()")
    with parent:
        psutil.Process(child).suspend()
        parent.kill()
    assert wait_until(lambda: not psutil.pid_exists(child), seconds=5)

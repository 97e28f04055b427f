"""What surrounds a server's processes: its private folder, and starts that fail again and again."""

import atexit
import logging
import os
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import bentoml
import psutil

from service.settings import Settings

logger = logging.getLogger(__name__)

_TRIES = 3
_LAST_WORDS = "last-words"


def is_worker() -> bool:
    """Whether a server has started this process, which then is its parent."""
    return bentoml.server_context.worker_index is not None


def server_pid() -> int:
    """The process that started all others; this one, when it is no worker."""
    return os.getppid() if is_worker() else os.getpid()


def run_folder(settings: Settings) -> Path:
    """Where the processes of one running server share what need not outlive it."""
    return settings.state / "run" / f"{socket.gethostname()}-{server_pid()}"


def prepare_state(settings: Settings) -> None:
    """Make the state's folder and the server's own one in it, for the eyes of this user only.

    Folders of servers of this host that run no more are removed.

    Raises:
        ValueError: the folder cannot be written.
    """
    os.umask(0o077)  # for every process: nothing in the state is for others to read
    try:
        settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(PermissionError):  # a volume may belong to somebody else
            settings.state.chmod(0o700)
        own = run_folder(settings)
        _remove_leftovers(own)
        own.mkdir(parents=True)
    except OSError as error:
        raise ValueError(f"ASSAY_STATE must be a folder to write in: {error.strerror}") from error
    atexit.register(_end, own, os.getpid())


def _remove_leftovers(own: Path) -> None:
    shutil.rmtree(own, ignore_errors=True)
    host = own.name.rpartition("-")[0]
    for folder in own.parent.glob(f"{host}-*"):
        pid = folder.name.rpartition("-")[2]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _end(folder: Path, server: int) -> None:
    """Say why the server ends, if it was made to, and take its folder away."""
    if os.getpid() != server:
        return  # a fork of the server
    words = folder / _LAST_WORDS
    message = words.read_text() if words.is_file() else ""
    shutil.rmtree(folder, ignore_errors=True)
    if message:
        sys.stderr.write(f"Assay ends: {message}\n")
        sys.stderr.flush()
        os._exit(1)  # at exit there is no other way left to fail


class StartGuard:
    """Ends the server when one of its workers cannot start.

    BentoML starts a worker that has ended again, for ever. Used as a context around a worker's
    start; a death that nothing can catch counts as well.

    Args:
        folder: see `run_folder`.
        name: of the worker; a later one in its place has the same.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._attempts = folder / f"starting-{name}"
        self._name = name

    def __enter__(self) -> None:
        if self._count() >= _TRIES:
            self._give_up("it died without a word")
        with self._attempts.open("ab") as file:
            file.write(b".")

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self._attempts.unlink(missing_ok=True)
            return
        logger.error("The %s could not start: %s", self._name, error)
        if self._count() >= _TRIES:
            self._give_up(str(error) or type(error).__name__)

    def _count(self) -> int:
        return self._attempts.stat().st_size if self._attempts.exists() else 0

    def _give_up(self, reason: str) -> None:
        message = f"the {self._name} could not start {_TRIES} times in a row: {reason}"
        (self._folder / _LAST_WORDS).write_text(message)
        os.kill(server_pid(), signal.SIGTERM)

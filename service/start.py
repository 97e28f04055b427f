"""What surrounds a server's processes: the state, the folder of one run, workers' starts."""

import atexit
import fcntl
import logging
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import bentoml

from service.settings import Settings

logger = logging.getLogger(__name__)

_ROLES = ("predict", "evaluate")
_LOCK = "lock"
_PREFIX = "assay-"
STARTED, FAILED = "started-", "failed-"  # before the id of a worker's process
# Of the path of a Unix socket, without the longest name in the folder.
_LONGEST_PATH = (107 if sys.platform == "linux" else 103) - len("/control")


def is_worker() -> bool:
    """Whether a server has started this process, which then is its parent."""
    return bentoml.server_context.worker_index is not None


def server_pid() -> int:
    """The process that started all others; this one, when it is no worker."""
    return os.getppid() if is_worker() else os.getpid()


def prepare_state(settings: Settings) -> None:
    """Make the state's folder, for the eyes of this user only.

    Raises:
        ValueError: the folder cannot be written.
    """
    os.umask(0o077)  # for every process: nothing in the state is for others to read
    try:
        settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(PermissionError):  # a volume may belong to somebody else
            settings.state.chmod(0o700)
        with tempfile.TemporaryFile(dir=settings.state):
            pass
    except OSError as error:
        raise _unwritable(f"ASSAY_STATE={settings.state}", error) from error


def _unwritable(place: str, error: OSError) -> ValueError:
    reason = f"{error.strerror} (user {os.geteuid()})"
    return ValueError(f"{place} must be a folder to write in: {reason}")


def claim_state(settings: Settings) -> None:
    """Keep other servers of the same role away from the state until this process ends.

    With SQLite there is one server of each role; on PostgreSQL there may be any number.

    Raises:
        ValueError: another server uses the state.
    """
    if settings.database.get_secret_value():
        return
    settings.state.mkdir(parents=True, exist_ok=True)
    for role in _ROLES if settings.role == "all" else (settings.role,):
        held = _descriptor(settings.state / f"{role}.lock")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(held)
            raise ValueError(
                f"another server uses this ASSAY_STATE to {role}; name a PostgreSQL database in"
                " ASSAY_DATABASE to run several, or another ASSAY_STATE"
            ) from None


def run_folder(settings: Settings) -> Path:
    """Where the processes of one running server share what need not outlive it."""
    if is_worker() and settings.run:
        return settings.run  # as `open_run_folder` named it
    return open_run_folder(settings)


def open_run_folder(settings: Settings) -> Path:
    """Make the private folder of this run, removed at exit; what killed runs left is removed.

    Raises:
        ValueError: the folder cannot be private, is in use, or its path is too long for sockets.
    """
    try:
        if settings.run is None:
            _remove_leftovers(Path(tempfile.gettempdir()))
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        else:
            folder = settings.run
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(folder)
        _lock(folder)
    except OSError as error:
        place = f"ASSAY_RUN={settings.run}" if settings.run else "the temporary folder"
        raise _unwritable(place, error) from error
    atexit.register(_end, folder, os.getpid())
    if len(os.fsencode(folder)) > _LONGEST_PATH:
        raise ValueError(f"ASSAY_RUN must be a path of at most {_LONGEST_PATH} bytes, got {folder}")
    return folder


def _check_private(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise ValueError("ASSAY_RUN must be a folder that belongs to this user")
    folder.chmod(0o700)
    if any(folder.iterdir()) and not (folder / _LOCK).is_file():
        raise ValueError("ASSAY_RUN must be a new or empty folder: it is removed at exit")
    if not _is_abandoned(folder) and (folder / _LOCK).exists():
        raise ValueError("another server uses this ASSAY_RUN")
    _empty(folder)


def _lock(folder: Path) -> None:
    """Show other servers that this folder is in use: the lock file is never seen unlocked."""
    new = folder / f"{_LOCK}.new"
    fcntl.flock(_descriptor(new), fcntl.LOCK_EX)
    new.rename(folder / _LOCK)


def _descriptor(lock: Path) -> int:
    """Open a file to lock; only the end of this process, however it comes, ends the lock."""
    return os.open(lock, os.O_CREAT | os.O_WRONLY, 0o600)


def _is_abandoned(folder: Path) -> bool:
    try:
        with (folder / _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_leftovers(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        own = folder.lstat().st_uid == os.geteuid() and not folder.is_symlink()
        if own and _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _end(folder: Path, server: int) -> None:
    """Remove the server's folder."""
    if os.getpid() != server:
        return  # a fork of the server
    with suppress(OSError):
        _empty(folder)
        folder.rmdir()


def fail_at_exit(folder: Path) -> None:
    """Have this process, the server, end with exit status 1, however it ends by itself.

    Args:
        folder: see `open_run_folder`.
    """
    server = os.getpid()

    def fail() -> None:
        """Remove the folder of the run, and end."""
        _end(folder, server)
        sys.stderr.flush()
        os._exit(1)  # at exit there is no other way left to fail

    atexit.register(fail)


@contextmanager
def reporting_start(folder: Path, name: str) -> Iterator[None]:
    """Tell the server whether the start of this worker, done in the block, has succeeded.

    Args:
        folder: see `run_folder`.
        name: of the worker, for people.
    """
    try:
        yield
        (folder / f"{STARTED}{os.getpid()}").touch()
    except BaseException as error:
        reason = str(error) or type(error).__name__
        logger.error("The %s could not start: %s", name, reason)
        with suppress(OSError):  # the disk may be full
            (folder / f"{FAILED}{os.getpid()}").write_text(reason)
        raise

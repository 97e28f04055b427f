"""BentoML's process manager: its sockets, and what becomes of workers that end."""

import errno
import functools
import inspect
import logging
import os
import signal
import socket
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from service.start import FAILED, STARTED, fail_at_exit

logger = logging.getLogger(__name__)

_TRIES = 3
_PAUSE_S = 1.0
SOCKETS = ("control", "events")  # of the process manager, in the run folder
# BentoML takes 102 bytes for /bentoml-uds-12345678/140123456789012.sock and the folder before it.
_LONGEST_PATH = 102 - 42


def manage_workers(folder: Path) -> None:
    """Have the process manager that starts next listen on Unix sockets only, and note deaths.

    BentoML 1.4.39 has circus listen on two TCP ports of 127.0.0.1, without authentication and
    without a setting for their addresses: every user of the host could run commands as this user
    and read the environment, API keys included. Nothing else reaches behind BentoML's public names.

    The evaluator's sockets lie in a folder that BentoML makes where temporary files go; inside of
    the given one it is removed even after a kill, unless paths would be too long for sockets.

    Args:
        folder: a folder that no other user may enter.
    """
    if len(os.fsencode(folder)) <= _LONGEST_PATH:
        tempfile.tempdir = str(folder)
    from circus.arbiter import Arbiter  # imported here: workers have no process manager

    original = inspect.unwrap(Arbiter.__init__)
    control, events = (f"ipc://{folder / name}" for name in SOCKETS)
    deaths = Deaths(folder)

    @functools.wraps(original)
    def with_private_sockets(self: Arbiter, *args: Any, **options: Any) -> None:
        """Listen on the folder's sockets, whatever was asked for."""
        try:
            check_free(options.get("sockets") or ())
        except ValueError as error:
            logger.critical("Assay cannot start: %s", error)
            raise SystemExit(1) from None
        options |= {"endpoint": control, "pubsub_endpoint": events}
        original(self, *args, **options)
        for watcher in self.watchers:
            watcher.hooks |= {"after_spawn": deaths.spawned, "after_reap": deaths.reaped}

    Arbiter.__init__ = with_private_sockets


def check_free(sockets: Iterable[Any]) -> None:
    """Refuse addresses that cannot be listened on, before circus ends with a traceback.

    Args:
        sockets: circus's, each with `host`, `port`, `family` and `is_unix`.

    Raises:
        ValueError: another program listens there, or this host or user may not.
    """
    for wanted in sockets:
        if wanted.is_unix:
            continue
        with socket.socket(wanted.family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((wanted.host, wanted.port))
            except OSError as error:
                where = f"port {wanted.port} of {wanted.host}"
                if error.errno == errno.EADDRINUSE:
                    raise ValueError(f"{where} is in use; name another with --port") from None
                raise ValueError(f"{where} cannot be used: {error.strerror}") from None


class Deaths:
    """Notes how workers end, and ends the server when one of them cannot start.

    BentoML starts a worker that has ended again, for ever. These are hooks of circus.

    Args:
        folder: where workers say whether they have started; see `service.start.reporting_start`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[int, str] = {}  # by process id; a later one in its place has the same
        self._failures: Counter[str] = Counter()

    def spawned(self, *, watcher: Any, pid: int, **_: Any) -> bool:
        """A worker begins to start."""
        kind = watcher.name.removeprefix("service_").replace("service", "worker")
        self._names[pid] = f"{kind} {watcher.processes[pid].wid}"
        return True

    def reaped(
        self, *, watcher: Any, arbiter: Any, process_pid: int, exit_code: int | None, **_: Any
    ) -> None:
        """A worker has ended; `exit_code` is negative for a signal."""
        name = self._names.pop(process_pid, "worker")
        started, reason = self._told(process_pid)
        if watcher.is_stopping():
            return
        end = _end(exit_code)
        logger.error("The %s (process %d) has ended: %s", name, process_pid, end)
        self._failures[name] = 0 if started else self._failures[name] + 1
        if self._failures[name] == _TRIES:
            told = f"the {name} could not start {_TRIES} times in a row: {reason or end}"
            logger.critical("Assay ends: %s", told)
            fail_at_exit(self._folder)
            # Later: circus takes no signal while it looks after its workers, as it does now.
            arbiter.loop.call_later(_PAUSE_S, os.kill, os.getpid(), signal.SIGTERM)

    def _told(self, pid: int) -> tuple[bool, str]:
        """Whether a worker had started, and why it could not."""
        marker, reason = self._folder / f"{STARTED}{pid}", ""
        started = marker.exists()
        with suppress(OSError):
            marker.unlink(missing_ok=True)
            failed = self._folder / f"{FAILED}{pid}"
            reason = failed.read_text()
            failed.unlink()
        return started, reason


def _end(exit_code: int | None) -> str:
    if exit_code is None:
        return "its exit status is not known"
    if exit_code >= 0:
        return f"exit status {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"

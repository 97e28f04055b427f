"""Run a module in a child process that writes nowhere else and ends with this one."""

import logging
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from core.confined import landlock_version

logger = logging.getLogger(__name__)

FIRST_PREDICTION_S = 30
"""Seconds of processor time in which a graph is opened, and in which it answers a first batch."""

REFUSED = 2
"""Exit status of a child that says why in its last line."""

_MOST_BYTES, _MOST_LINES = 16_384, 20
_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended.

    Attributes:
        status: its exit status, negative for a signal; None when it took too long.
        errors: the last lines of its standard error.
    """

    status: int | None
    errors: list[str]

    @property
    def reason(self) -> str:
        """Why it did not end well, in words."""
        if self.status == REFUSED and self.errors:
            return self.errors[-1].removeprefix("error: ")
        if self.status is None:
            return "opening it takes too long"
        if self.status == -signal.SIGXCPU:
            return f"a first prediction takes more than {FIRST_PREDICTION_S} s of processor time"
        return f"the process that opened it ended with status {self.status}"


def run_child(
    module: str,
    arguments: Sequence[str],
    *,
    own: Path,
    writable: Sequence[Path] = (),
    timeout: float,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run `python -m MODULE ARGUMENTS`; the module calls `end_with_parent` first.

    Args:
        module: of this project.
        arguments: of its command line.
        own: an empty folder, for its temporary files.
        writable: folders, made where they are missing. In these and in `own` alone may the child
            write, if the kernel has Landlock; see `core.confined`.
        timeout: seconds after which the child is killed.
        environment: variables that it has beside those of this process.
    """
    if not landlock_version():
        logger.info("The kernel has no Landlock: %s may write wherever the service may", module)
    command = [sys.executable, "-m", "core.confined"]
    for folder in (own, *writable):
        with suppress(OSError):  # a disk that is full, or cannot be written
            folder.mkdir(parents=True, exist_ok=True)
            command += ["--write", str(folder.absolute())]
    # Nothing is ever written: the child ends when the end of this process closes the pipe.
    ours, theirs = os.pipe()[::-1]
    errors = own / "errors"
    status = None
    try:
        with errors.open("wb") as stderr, suppress(subprocess.TimeoutExpired):
            status = subprocess.run(
                [*command, module, *arguments],
                cwd=_ROOT,
                env={name: value for name, value in os.environ.items() if name[:6] != "ASSAY_"}
                | {"TMPDIR": str(own.absolute())}
                | dict(environment or {}),
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                timeout=timeout,
                check=False,
            ).returncode
    finally:
        os.close(ours)
        os.close(theirs)
    return Ended(status, _last_lines(errors))


def _last_lines(path: Path) -> list[str]:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _MOST_BYTES))
        return file.read().decode(errors="replace").strip().splitlines()[-_MOST_LINES:]


def end_with_parent() -> None:
    """End when the pipe that `run_child` holds is closed: the parent may have been killed."""
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=lambda: os.read(0, 1) or os._exit(1), daemon=True).start()


@contextmanager
def processor_limit(seconds: int) -> Iterator[None]:
    """Have the kernel kill this process if the block takes more processor time."""
    times = os.times()
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    limit = int(times.user + times.system) + 1 + seconds
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))

"""The processes of a server: what each of them does, how much memory they hold, how they end."""

import ctypes
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil


def family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants; empty when it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def by_role(server: int) -> Iterator[tuple[str, psutil.Process]]:
    """The processes of a server with what each does: see `role_of`."""
    for process in family(server):
        with suppress(psutil.Error):  # it has ended
            yield role_of(process, server), process


def role_of(process: psutil.Process, server: int) -> str:
    """What a process of `server` is: server, worker, decoder, opener, evaluator or evaluation.

    An opener opens or times an artifact for a worker.

    Raises:
        psutil.Error: it has ended.
    """
    if process.pid == server:
        return "server"
    command = process.cmdline()
    if "service.jobs.child" in command:
        return "evaluation"
    if "service.decoding.child" in command:
        return "decoder"
    if "core.confined" in command:
        return "opener"
    return "evaluator" if "evaluator" in command else "worker"


_CGROUP_ROOT = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of version 2 and version 1


def available_memory(*, root: Path = _CGROUP_ROOT) -> int:
    """Bytes that this process may use: the machine's memory, or its container's if that is less.

    Args:
        root: where the cgroup file systems are mounted.
    """
    limits = [_number(root / name) for name in _LIMITS]
    return min([psutil.virtual_memory().total, *(limit for limit in limits if limit)])


def resident_bytes(processes: list[psutil.Process]) -> int:
    """Bytes of memory that some processes hold; what two of them share counts twice."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


def return_memory() -> None:
    """Free what errors keep in circles, and give freed memory back, which glibc would keep."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # there is no such limit
        return None


_WATCH_S = 0.25


def watch_parent(*, parent: int | None = None, grace: float = 1.0) -> None:
    """Start a thread that ends this process soon after its parent died.

    BentoML's workers run in their own session: killing their parent with SIGKILL would leave them,
    and what they started, running for ever. The thread stands still while its process is stopped;
    see `core.starter`.

    Args:
        parent: process id that the parent is known to have; closes the gap in which it dies
            before the watch begins. None takes the present parent.
        grace: seconds from SIGTERM to SIGKILL; 0 kills at once.
    """
    arguments = (os.getppid() if parent is None else parent, grace)
    threading.Thread(target=_watch, args=arguments, name="watch-parent", daemon=True).start()


def _watch(parent: int, grace: float) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    if grace:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
    # SIGKILL and not os._exit: it also ends a process that is stuck in an uninterruptible handler.
    os.kill(os.getpid(), signal.SIGKILL)

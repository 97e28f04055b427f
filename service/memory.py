"""How much memory there is, and how much an evaluation holds."""

from pathlib import Path

import psutil

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
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # there is no such limit
        return None

"""How many cores this process may use."""

import os
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def available_cores(*, root: Path = _CGROUP_ROOT, own: Path = _OWN_CGROUPS) -> int:
    """Cores that this process may use: the affinity mask, capped by the cgroup's CPU quota.

    Inside a container the number of processors is that of the host; a pool of that size under a
    small quota spends its time being throttled. A fractional quota is rounded down, at least to 1.

    Args:
        root: where the cgroup file systems are mounted.
        own: the list of this process's cgroups.
    """
    quotas = [quota for quota in (_quota_v2(root, own), _quota_v1(root, own)) if quota is not None]
    return max(1, int(min([_affinity(), *quotas])))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota_v2(root: Path, own: Path) -> float | None:
    """The smallest quota in cores from the process's own cgroup up to the root."""
    found = []
    for folder in _up_to_root(root, _own_path(own, "")):
        words = _words(folder / "cpu.max")
        if len(words) == 2 and words[0] != "max":
            found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


def _quota_v1(root: Path, own: Path) -> float | None:
    found = []
    for mount in (root / "cpu", root / "cpu,cpuacct"):
        for folder in _up_to_root(mount, _own_path(own, "cpu")):
            quota, period = (_words(folder / f"cpu.cfs_{kind}_us") for kind in ("quota", "period"))
            # A quota of -1 means no limit.
            if quota and period and int(quota[0]) > 0:
                found.append(int(quota[0]) / int(period[0]))
    return min(found, default=None)


def _own_path(own: Path, controller: str) -> str:
    for line in own.read_text().splitlines() if own.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    return ""


def _up_to_root(root: Path, path: str) -> list[Path]:
    # Inside a container the path is the host's and may not exist; the mount's root always does.
    folder = root / path
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []

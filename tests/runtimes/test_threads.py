import os
from pathlib import Path

import pytest

from runtimes.threads import available_cores


def cgroup(root: Path, files: dict[str, str], own: str) -> dict[str, Path]:
    for name, text in files.items():
        path = root / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "own").write_text(own)
    return {"root": root / "fs", "own": root / "own"}


@pytest.mark.parametrize(
    ("files", "own", "cores"),
    [
        ({}, "", 16),
        ({"cpu.max": "max 100000\n"}, "0::/\n", 16),
        ({"cpu.max": "400000 100000\n"}, "0::/\n", 4),
        ({"cpu.max": "250000 100000\n"}, "0::/\n", 2),
        ({"cpu.max": "50000 100000\n"}, "0::/\n", 1),
        ({"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, "0::/a/b\n", 3),
        ({"a/b/cpu.max": "500000 100000\n", "cpu.max": "700000 100000\n"}, "0::/a/b/c\n", 5),
        ({"cpu.max": "200000 100000\n"}, "0::/host/path/not/mounted/here\n", 2),
        ({"cpu.max": "200000 100000\n"}, "0::/../sibling\n", 2),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "", 16),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, "", 3),
        (
            {
                "cpu,cpuacct/x/cpu.cfs_quota_us": "150000\n",
                "cpu,cpuacct/x/cpu.cfs_period_us": "50000\n",
            },
            "4:cpu,cpuacct:/x\n1:memory:/y\n",
            3,
        ),
        (
            {
                "cpu/a/b/cpu.cfs_quota_us": "-1\n",
                "cpu/a/b/cpu.cfs_period_us": "100000\n",
                "cpu/a/cpu.cfs_quota_us": "600000\n",
                "cpu/a/cpu.cfs_period_us": "100000\n",
                "unified/cpu.max": "100000 100000\n",
            },
            "0::/a/b\n4:cpu:/a/b\n",
            6,
        ),
    ],
)
def test_quota_of_the_cgroup_caps_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], own: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    assert available_cores(**cgroup(tmp_path, files, own)) == cores


def test_affinity_caps_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3}, raising=False)
    assert available_cores(**cgroup(tmp_path, {"cpu.max": "400000 100000"}, "0::/")) == 1

"""Ranges shared out to real Ray, started on this machine with two processors."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from robustness.__main__ import main
from robustness.executors.on_ray import OnRay

pytest.importorskip("ray")


def contents(folder: Path) -> dict[str, bytes]:
    found = sorted((folder / "shards").rglob("*"))
    return {str(p.relative_to(folder)): p.read_bytes() for p in found if p.is_file()}


def actors(pid: int) -> list[psutil.Process]:
    """The processes in which ranges are done."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::Bench"):
                found.append(process)
        except psutil.Error:  # it ended meanwhile
            continue
    return found


def test_ray_leaves_the_same_bytes_though_an_actor_is_killed(
    artifacts: Any, tmp_path: Path
) -> None:
    options = [
        "evaluate", "--artifact", str(artifacts.dot), "--data", str(artifacts.images),
        "--attack", "pgd", "--eps", "6/255", "--steps", "150", "--workers", "2", "--output",
    ]  # fmt: skip
    on_ray, here = tmp_path / "ray", tmp_path / "here"
    command = [sys.executable, "-m", "robustness", *options, str(on_ray), "--engine", "ray"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 120
            while not any(on_ray.rglob("clean-*")) and time.monotonic() < deadline:
                assert process.poll() is None
                time.sleep(0.05)
            victims = actors(process.pid)
            assert victims
            victims[0].kill()
            _, errors = process.communicate(timeout=180)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert main([*options, str(here)]) == 0
    assert contents(on_ray) == contents(here)


def test_number_of_workers_must_count_something(artifacts: Any) -> None:
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        OnRay([artifacts.dot], workers=0)

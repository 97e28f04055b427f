"""A disk that is full when a server starts; `test_sockets` has one that becomes full."""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from service.settings import ROOT
from tests.service.server import environment


@contextmanager
def small_disk(folder: str, mode: int = 700) -> Iterator[bool]:
    """Have a disk of 4 MB in a folder; whether mounting one is permitted here."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size=4m,mode={mode}", "tmpfs", folder]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def disk() -> Iterator[Path]:
    with TemporaryDirectory(prefix="disk") as folder, small_disk(folder) as mounted:
        if not mounted:
            pytest.skip("mounting a file system is not permitted here")
        yield Path(folder)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("ASSAY_STATE", "the table of evaluations in .*database or disk is full"),
        ("ASSAY_RUN", "ASSAY_RUN=.* must have room for 1.2 MB: No space left on device"),
    ],
)
def test_a_fresh_server_without_room_ends_with_a_sentence(
    disk: Path, tmp_path: Path, variable: str, told: str
) -> None:
    fill(disk)
    ended = subprocess.run(
        [sys.executable, "-m", "bentoml", "serve", str(ROOT), "--port", "0"],
        cwd=tmp_path,
        env=environment(tmp_path / "home", {"ASSAY_ROLE": "evaluate", variable: disk / "new"}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert re.search(f"Assay cannot start: {told}", line)


FIGURES = f"""
import sys
from contextlib import suppress
from pathlib import Path
from service.metrics import Metrics, share_figures
{inspect.getsource(fill)}
share_figures(Path(sys.argv[1]))
metrics = Metrics()
fill(Path(sys.argv[1]).parent)
for number in range(64):
    metrics.batch(f"a-long-name-of-a-model-{{number}}", 1, 0.1, 0.1)
    metrics.queued(f"a-long-name-of-a-model-{{number}}", 1)
    for status in (200, 400, 413, 422, 429, 500, 503):
        route = "/v1/evaluations/{{id}}/samples/{{index}}/adversarial.png"
        metrics.answered(route=f"{{route}}{{number}}", method="POST", status=status, seconds=0.1)
"""


def test_figures_of_all_routes_and_64_models_need_no_room_later(disk: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FIGURES, str(disk / "metrics")]
    given = {"PROMETHEUS_MULTIPROC_DIR": tmp_path}  # as BentoML gives it to its workers
    ended = subprocess.run(command, cwd=ROOT, env=environment(tmp_path, given), timeout=60)
    assert ended.returncode == 0  # a map without room is the signal SIGBUS

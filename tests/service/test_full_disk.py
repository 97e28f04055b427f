"""A disk that is full when a server starts, or becomes full under one."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from service.settings import ROOT
from tests.service.conftest import png
from tests.service.server import QUICK, environment, serve


@pytest.fixture
def disk() -> Iterator[Path]:
    """A disk of 4 MB."""
    with TemporaryDirectory(prefix="disk") as folder:  # short enough for the paths of sockets
        mount = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", folder]
        try:
            subprocess.run(mount, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("mounting a file system is not permitted here")
        yield Path(folder)
        subprocess.run(["umount", "--lazy", folder], check=True)


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
        env=environment(tmp_path / "home", {**QUICK, variable: disk / "new"}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert re.search(f"Assay cannot start: {told}", line)


def test_a_server_in_use_predicts_and_is_ready_when_its_disk_is_full(
    disk: Path, tmp_path: Path
) -> None:
    given = {**QUICK, "ASSAY_STATE": disk / "state", "ASSAY_RUN": disk / "run", "ASSAY_FREE_MB": 0}
    with serve(str(ROOT), cwd=tmp_path, home=tmp_path / "home", **given) as server:
        fill(disk)
        for _ in range(2):
            files = {"images": png(size=28)}
            assert httpx.post(f"{server.url}/classify", files=files).status_code == 200
        spec = {"model": "fashion-dot", "attacks": [{"name": "fgsm", "eps": ["1/255"]}]}
        form = {"data": {"spec": json.dumps(spec)}, "files": {"images": png(size=28)}}
        refused = httpx.post(f"{server.url}/v1/evaluations", **form)
        assert (refused.status_code, refused.json()["error"]["code"]) == (507, "disk_full")
        assert httpx.get(f"{server.url}/readyz").status_code == 200
        log = server.log.read_text().splitlines()
        assert len(server.lines()) == len(log), log  # every line is JSON, the first ones too
        assert 'route="/v1/evaluations",status="507"' in httpx.get(f"{server.url}/metrics").text


FIGURES = """
import sys
from pathlib import Path
from service.metrics import Metrics, share_figures
from tests.service.test_full_disk import fill
share_figures(Path(sys.argv[1]))
metrics = Metrics()
fill(Path(sys.argv[1]).parent)
for number in range(64):
    metrics.batch(f"a-long-name-of-a-model-{number}", 1, 0.1, 0.1)
    metrics.queued(f"a-long-name-of-a-model-{number}", 1)
    for status in (200, 400, 413, 422, 429, 500, 503):
        route = "/v1/evaluations/{id}/samples/{index}/adversarial.png"
        metrics.answered(route=f"{route}{number}", method="POST", status=status, seconds=0.1)
"""


def test_figures_of_all_routes_and_64_models_need_no_room_later(disk: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FIGURES, str(disk / "metrics")]
    given = {"PROMETHEUS_MULTIPROC_DIR": tmp_path}  # as BentoML gives it to its workers
    ended = subprocess.run(command, cwd=ROOT, env=environment(tmp_path, given), timeout=60)
    assert ended.returncode == 0  # a map without room is the signal SIGBUS

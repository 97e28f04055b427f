"""The examples of clients and the smoke test, against a server over a socket."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.settings import ROOT
from tests.service.server import serve

CLIENTS = ROOT / "deploy" / "clients"
SAMPLES = ROOT / "artifacts" / "samples" / "fashion-mnist"
NO_FILE = "no such file: none.png"
IMAGES = [str(SAMPLES / "bag" / "00018.png"), str(SAMPLES / "coat" / "00006.png")]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the shipped models over a socket."""
    folder = tmp_path_factory.mktemp("served")
    with serve(str(ROOT), cwd=folder, home=folder / "home", ASSAY_RUNTIME="onnx-cpu") as server:
        yield server.url


def run(*command: str, cwd: Path = ROOT, home: Path | None = None, expected: int = 0) -> str:
    """What a command that ends with the expected status prints, or says on standard error."""
    environment = os.environ | {"BENTOML_DO_NOT_TRACK": "True"}
    if home is not None:
        environment["BENTOML_HOME"] = str(home)
    ended = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == expected, ended.stdout + ended.stderr
    return ended.stdout or ended.stderr


def test_smoke_test_passes_or_fails_where_nothing_answers(url: str) -> None:
    told = run(sys.executable, "-m", "deploy.smoke", url, "--samples", "4")
    assert "classified 4 images" in told and "inferred with 4 models" in told
    *_, last = told.splitlines()
    identity = last.rpartition(" ")[2]
    again = run(sys.executable, "-m", "deploy.smoke", url, "--expect", identity)
    assert last in again
    command = [sys.executable, "-m", "deploy.smoke", "http://127.0.0.1:9", "--wait", "0.2"]
    assert "FAILED: /readyz" in run(*command, expected=1)


def test_clients_name_what_they_see(url: str, tmp_path: Path) -> None:
    address = url.removeprefix("http://")
    for script, options, expected in (
        ("with_bentoml.py", ["--url", url], ["Bag", "Coat"]),
        ("with_tritonclient.py", ["--address", address], ["class 8", "class 4"]),
    ):
        told = run(sys.executable, str(CLIENTS / script), *IMAGES, *options, home=tmp_path)
        assert [line.partition(": ")[2].split(" (")[0] for line in told.splitlines()] == expected


@pytest.mark.parametrize(
    ("gate", "code"),
    [
        pytest.param("robust_accuracy >= 0", 0, marks=pytest.mark.slow),
        ("robust_accuracy >= 0.99", 1),
        ("nonsense", 2),
    ],
)
def test_httpx_example_ends_as_the_gate_says(
    url: str, tmp_path: Path, gate: str, code: int
) -> None:
    for label in ("bag", "coat", "trouser"):
        (folder := tmp_path / "images" / label).mkdir(parents=True)
        for path in sorted((SAMPLES / label).glob("*.png"))[:2]:
            shutil.copy(path, folder)
    command = [sys.executable, str(CLIENTS / "with_httpx.py"), str(tmp_path / "images")]
    command += ["--url", url, "--gate", gate, "--output", str(tmp_path / "report.html")]
    run(*command, expected=code)
    assert (tmp_path / "report.html").exists() == (code < 2)
    if code < 2:
        assert "</html>" in (tmp_path / "report.html").read_text()


def test_curl_example(url: str, tmp_path: Path) -> None:
    told = run("sh", str(CLIENTS / "with_curl.sh"), IMAGES[0], url, cwd=tmp_path)
    assert '"label":"Bag"' in told and "report.html is about /v1/evaluations/" in told
    assert "</html>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("script", "asked", "told"),
    [
        ("with_bentoml.py", [IMAGES[0], "--url", "http://127.0.0.1:9"], "no answer from http://"),
        pytest.param("with_bentoml.py", ["none.png"], NO_FILE, marks=pytest.mark.slow),
        ("with_tritonclient.py", [IMAGES[0], "--address", "127.0.0.1:9"], "no answer from 127."),
        pytest.param("with_tritonclient.py", ["none.png"], NO_FILE, marks=pytest.mark.slow),
        ("with_httpx.py", [str(SAMPLES), "--url", "http://127.0.0.1:9"], "no answer from http://"),
        ("with_httpx.py", ["none"], "none holds no class/name.png"),
        ("with_curl.sh", [IMAGES[0], "http://127.0.0.1:9"], "Failed to connect to 127.0.0.1"),
        ("with_curl.sh", ["none.png"], NO_FILE),
    ],
)
def test_a_client_without_answer_or_file_says_so_in_one_sentence(
    script: str, asked: list[str], told: str, tmp_path: Path
) -> None:
    program = "sh" if script.endswith(".sh") else sys.executable
    said = run(program, str(CLIENTS / script), *asked, home=tmp_path, expected=2)
    assert told in said and said.count("\n") == 1

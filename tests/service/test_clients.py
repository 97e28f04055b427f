"""The examples of clients and the smoke test in `deploy`, against a server over a socket."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from service.settings import ROOT

CLIENTS = ROOT / "deploy" / "clients"
SAMPLES = ROOT / "artifacts" / "samples" / "fashion-mnist"
NO_FILE = "no such file: none.png"
IMAGES = [str(SAMPLES / "bag" / "00018.png"), str(SAMPLES / "coat" / "00006.png")]


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


def test_smoke_test_passes_or_fails_where_nothing_answers(page_url: str) -> None:
    told = run(sys.executable, "-m", "deploy.smoke", page_url, "--samples", "4")
    served = sum(one["kind"] != "remote" for one in httpx.get(f"{page_url}/v1/models").json())
    assert "classified 4 images" in told and f"inferred with {served} models" in told
    *_, last = told.splitlines()
    identity = last.rpartition(" ")[2]
    again = run(sys.executable, "-m", "deploy.smoke", page_url, "--expect", identity)
    assert last in again
    command = [sys.executable, "-m", "deploy.smoke", "http://127.0.0.1:9", "--wait", "0.2"]
    assert "FAILED: /readyz" in run(*command, expected=1)


def test_clients_name_what_they_see(page_url: str, tmp_path: Path) -> None:
    address = page_url.removeprefix("http://")
    for script, options, expected in (
        ("with_bentoml.py", ["--url", page_url], ["Bag", "Coat"]),
        ("with_tritonclient.py", ["--address", address], ["class 8", "class 4"]),
    ):
        told = run(sys.executable, str(CLIENTS / script), *IMAGES, *options, home=tmp_path)
        assert [line.partition(": ")[2].split(" (")[0] for line in told.splitlines()] == expected


@pytest.mark.parametrize(
    ("gate", "code"),
    [
        pytest.param("robust_accuracy >= 0", 0, marks=pytest.mark.slow),
        pytest.param("robust_accuracy >= 0.99", 1, marks=pytest.mark.slow),
        ("nonsense", 2),
    ],
)
def test_httpx_example_ends_as_the_gate_says(
    page_url: str, tmp_path: Path, gate: str, code: int
) -> None:
    for label in ("bag", "coat", "trouser"):
        (folder := tmp_path / "images" / label).mkdir(parents=True)
        for path in sorted((SAMPLES / label).glob("*.png"))[:2]:
            shutil.copy(path, folder)
    command = [sys.executable, str(CLIENTS / "with_httpx.py"), str(tmp_path / "images")]
    command += ["--url", page_url, "--gate", gate, "--output", str(tmp_path / "report.html")]
    run(*command, expected=code)
    assert (tmp_path / "report.html").exists() == (code < 2)
    if code < 2:
        assert "</html>" in (tmp_path / "report.html").read_text()


def test_curl_example(page_url: str, tmp_path: Path) -> None:
    told = run("sh", str(CLIENTS / "with_curl.sh"), IMAGES[0], page_url, cwd=tmp_path)
    assert '"label":"Bag"' in told and "report.html is about /v1/evaluations/" in told
    assert "</html>" in (tmp_path / "report.html").read_text()


UNANSWERED = [
    ("with_bentoml.py", [IMAGES[0], "--url", "http://127.0.0.1:9"], "no answer from http://"),
    ("with_tritonclient.py", [IMAGES[0], "--address", "127.0.0.1:9"], "no answer from 127."),
    ("with_httpx.py", [str(SAMPLES), "--url", "http://127.0.0.1:9"], "no answer from http://"),
    ("with_httpx.py", ["none"], "none holds no class/name.png"),
    ("with_curl.sh", [IMAGES[0], "http://127.0.0.1:9"], "Failed to connect to 127.0.0.1"),
    ("with_curl.sh", ["none.png"], NO_FILE),
]
FILELESS = [
    (script, ["none.png"], NO_FILE) for script in ("with_bentoml.py", "with_tritonclient.py")
]


@pytest.mark.slow
@pytest.mark.parametrize("cases", [UNANSWERED, FILELESS])
def test_a_client_without_answer_or_file_says_so_in_one_sentence(
    cases: list[tuple[str, list[str], str]], tmp_path: Path
) -> None:
    with ThreadPoolExecutor() as pool:  # most of them wait for an answer
        ends = [pool.submit(alone, script, asked, tmp_path) for script, asked, _ in cases]
    for (*_, told), end in zip(cases, ends, strict=True):
        assert told in end.result() and end.result().count("\n") == 1


def alone(script: str, asked: list[str], home: Path) -> str:
    program = "sh" if script.endswith(".sh") else sys.executable
    return run(program, str(CLIENTS / script), *asked, home=home, expected=2)

"""How a server starts, says whether it is ready, and leaves; over real servers."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from runtimes.artifact import Artifact, open_artifact
from service.settings import ROOT
from tests.service.conftest import png, wait_until
from tests.service.server import QUICK, Server, environment, serve
from tests.service.tiny_artifact import copy_artifact


class Load:
    """Clients that ask until the server refuses connections."""

    def __init__(self, url: str, clients: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.models: Counter[str] = Counter()
        self._url = url
        self._ended = threading.Event()
        self._image = png(size=28)
        self._threads = [threading.Thread(target=self._fire, args=(n,)) for n in range(clients)]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(60)

    def end(self) -> None:
        self._ended.set()
        self.wait()

    def _fire(self, number: int) -> None:
        keep = number % 2 == 0  # half of them keep their connection
        with httpx.Client(timeout=30) as client:
            while not self._ended.is_set():
                headers = {} if keep else {"connection": "close"}
                try:
                    files = {"images": self._image}
                    answer = client.post(f"{self._url}/classify", files=files, headers=headers)
                except httpx.ConnectError:
                    return
                except httpx.TransportError as error:
                    self.outcomes[repr(error)] += 1
                    return
                self.outcomes[str(answer.status_code)] += 1
                self.models[answer.headers.get("x-assay-model", "")] += 1


def test_no_request_is_lost_when_versions_come_and_go_and_the_server_stops(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    shutil.copytree(ROOT / "artifacts" / "fashion-dot", folder / "one")
    options: dict[str, Any] = {**QUICK, "ASSAY_MODELS": folder, "ASSAY_RELOAD_S": 0.2}
    options |= {"ASSAY_ROLE": "predict", "ASSAY_WORKERS": 2, "ASSAY_DRAIN_S": 2}
    with serve(str(ROOT), cwd=tmp_path, home=tmp_path / "home", **options) as server:
        assert not any("evaluator" in process.cmdline() for process in server.family())
        load = Load(server.url, clients=6)
        try:
            copy_artifact(open_artifact(folder / "one"), folder / "two", version="2")
            assert wait_until(lambda: load.models["fashion-dot:2"] > 20, seconds=30)
            shutil.rmtree(folder / "one")
            assert wait_until(lambda: _versions(server) == ["2"], seconds=30)
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert wait_until(lambda: not _is_ready(server), seconds=1.8)
            load.wait()
        finally:
            load.end()
        server.process.wait(15)
        assert 2 <= time.monotonic() - began < 12
        unusual = [line for line in server.lines() if line["level"] not in ("debug", "info")]
        assert set(load.outcomes) == {"200"}, (load.outcomes, unusual)
        assert not any(line["level"] == "error" for line in unusual)


def _versions(server: Server) -> list[str]:
    return [model["version"] for model in httpx.get(f"{server.url}/v1/models").json()]


def _is_ready(server: Server) -> bool:
    answer = httpx.get(f"{server.url}/readyz")
    if answer.status_code == 200:
        return True
    error = answer.json()["error"]
    assert (answer.status_code, error["details"]) == (503, {"failing": ["draining"]})
    assert answer.headers["connection"] == "close" and answer.headers["retry-after"]
    assert httpx.get(f"{server.url}/livez").status_code == 200
    return False


@pytest.mark.slow
def test_a_host_that_only_evaluates_answers_nothing_else_and_leaves_no_orphan(
    tmp_path: Path,
) -> None:
    options = {"ASSAY_ROLE": "evaluate", "ASSAY_EVALUATORS": 2, "ASSAY_MODELS": "nowhere"}
    with serve(str(ROOT), cwd=tmp_path, home=tmp_path / "home", **options) as server:
        family = server.family()
        evaluators = [process for process in family if "evaluator" in process.cmdline()]
        assert len(evaluators) == 2 and len(family) >= 4  # BentoML's parent, and who answers
        assert httpx.get(f"{server.url}/livez").status_code == 200
        assert "assay_evaluator_alive 1.0" in httpx.get(f"{server.url}/metrics").text
        for path in ("/", "/v1/models", "/v1/evaluations", "/docs"):
            answer = httpx.get(f"{server.url}{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        for process in evaluators:
            process.suspend()
        failing = httpx.get(f"{server.url}/readyz", timeout=20)
        assert failing.json()["error"]["details"] == {"failing": ["evaluator"]}
        for process in evaluators:
            process.resume()
        server.process.kill()
        assert wait_until(lambda: not any(map(_lives, family)), seconds=10), family


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_a_worker_that_cannot_start_again_ends_the_server(
    tmp_path: Path, tiny_artifact: Artifact
) -> None:
    models = tmp_path / "models" / "one"
    shutil.copytree(tiny_artifact.folder, models)
    options = {"ASSAY_MODELS": models, "ASSAY_RUNTIME": "onnx-cpu", "ASSAY_ROLE": "predict"}
    options["BENTOML_CONTAINERIZED"] = "true"
    with serve(str(ROOT), cwd=tmp_path, home=tmp_path / "home", **options) as server:
        (models / "model.onnx").write_bytes(b"broken")
        worker = [p for p in server.family() if "--worker-id" in p.cmdline()][-1]
        worker.kill()
        assert server.process.wait(90) == 1
        *_, last = server.lines()
        assert last["message"].startswith("Assay ends: the worker 1 could not start 3 times")
        told = f"The worker 1 (process {worker.pid}) has ended: SIGKILL"
        assert told in [line["message"] for line in server.lines()]
        assert len(server.lines()) == len(server.log.read_text().splitlines())


def test_settings_that_cannot_be_are_refused_at_start(tmp_path: Path) -> None:
    setting = {"ASSAY_API_KEYS": '[{"name": "a", "key": "hidden-key"}]'}
    ended = subprocess.run(
        [sys.executable, "-m", "bentoml", "serve", str(ROOT), "--port", "0"],
        cwd=tmp_path,
        env=environment(tmp_path / "home", setting),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode != 0
    (line,) = ended.stderr.splitlines()
    assert json.loads(line)["message"].startswith("Assay cannot start: ")
    assert "entry 0 (a) scopes must be" in ended.stderr
    assert "Traceback" not in ended.stderr and "hidden-key" not in ended.stderr + ended.stdout

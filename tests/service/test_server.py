"""The service over a socket: `bentoml serve` from the sources and from a built bento."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import bentoml
import httpx
import psutil
import pytest
from bentoml.exceptions import BentoMLException, NotFound

from service.settings import ROOT
from tests.conftest import Once
from tests.service.conftest import png, wait_until
from tests.service.server import QUICK, Server, built_bento, serve


def test_sources_serve_bentomls_client_and_leave_no_orphan(tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    image.write_bytes(png(size=28))
    start = tmp_path / "start"
    start.mkdir()
    with serve(str(ROOT), cwd=start, home=tmp_path / "home") as server:
        with bentoml.SyncHTTPClient(server.url) as client:
            (prediction, _) = client.classify(images=[image, image], top_k=2)  # type: ignore
            assert prediction["model"] == "fashion-elliptical"
            assert len(prediction["top_k"]) == 2
            with pytest.raises(NotFound, match="unknown_model"):
                client.classify(images=[image], model="nope")  # type: ignore
            with pytest.raises(BentoMLException, match="not_a_file"):
                client.classify(images=["http://127.0.0.1:9/x.png"])  # type: ignore
        assert _chunked(server.url) == 413
        odd = {b"content-type": b"multipart/form-data; boundary=\xe9"}
        refused = httpx.post(f"{server.url}/classify", content=b"x", headers=odd)
        assert refused.json()["error"]["code"] == "malformed_multipart"
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'assay_requests_total{method="POST",route="/classify",status="200"} 1.0' in metrics
        assert (start / "state").is_dir()
        assert {path.name for path in start.iterdir()} == {"state"}

        family = server.family()
        assert len(family) >= 3  # BentoML's parent, the front, the evaluator
        server.process.kill()
        assert wait_until(lambda: not any(map(_lives, family)), seconds=10), family


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _chunked(url: str) -> int:
    """Status of a body over the limit whose length is not announced."""

    def chunks() -> Iterator[bytes]:
        yield b'--B\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
        for _ in range(70):
            yield bytes(1_000_000)

    headers = {"content-type": "multipart/form-data; boundary=B"}
    return httpx.post(f"{url}/classify", content=chunks(), headers=headers).status_code


def test_built_bento_serves_from_anywhere(once: Once, tmp_path: Path) -> None:
    bento, start = built_bento(once), tmp_path / "start"
    start.mkdir()
    held = {path.name for path in (bento / "src").iterdir()}
    assert held.isdisjoint({"tests", "training", "recipes", "benchmarks", "state", "runs"})
    home = tmp_path / "home"
    # Others read the bento.
    with serve(str(bento), cwd=start, home=home, PYTHONDONTWRITEBYTECODE=1) as server:
        answer = httpx.post(f"{server.url}/classify", files={"images": png(size=28)})
        assert answer.json()[0]["model"] == "fashion-elliptical"
        assert httpx.get(f"{server.url}/").status_code == 200
        samples = httpx.get(f"{server.url}/samples/index.json").json()
        file = samples[0]["file"]
        assert httpx.get(f"{server.url}/samples/{file}").headers["content-type"] == "image/png"
    assert {path.name for path in start.iterdir()} == {"state"}


def test_evaluation_survives_a_kill_and_its_pictures_mislead_the_public_path(
    tmp_path: Path,
) -> None:
    """A whole evaluation of a shipped model: the 8-bit flags must be what `/classify` answers."""
    samples = ROOT / "artifacts" / "samples" / "fashion-mnist"
    paths = [path for folder in sorted(samples.iterdir()) for path in sorted(folder.glob("*.png"))]
    paths = paths[::8]
    spec = {"model": "fashion-elliptical", "attacks": [{"name": "pgd", "eps": ["8/255"]}]}
    form = {"spec": json.dumps(spec), "labels": json.dumps([path.parent.name for path in paths])}
    files = [("images", (path.name, path.read_bytes())) for path in paths]
    options = {**QUICK, "ASSAY_MODELS": ROOT / "artifacts" / "fashion-elliptical"}
    with serve(str(ROOT), cwd=tmp_path, home=tmp_path / "home", **options) as server:
        accepted = httpx.post(f"{server.url}/v1/evaluations", data=form, files=files)
        assert accepted.status_code == 202, accepted.text
        job = f"{server.url}{accepted.headers['location']}"
        assert wait_until(lambda: httpx.get(job).json()["progress"]["done"] > 0, seconds=60)
        _evaluation_process(server).kill()
        assert wait_until(lambda: httpx.get(job).json()["status"] == "succeeded", seconds=90)
        report = httpx.get(f"{job}/report.json").json()
        assert report["summary"] == httpx.get(job).json()["result"]
        flags = [sample["models"][0] for sample in report["samples"]]
        misled = [i for i, f in enumerate(flags) if not f["attacks"][0]["confirmed_8bit"]]
        assert len(misled) > len(paths) / 2
        for index in misled[:10]:
            picture = httpx.get(f"{job}/samples/{index}/adversarial.png").content
            answer = httpx.post(f"{server.url}/classify", files={"images": picture}).json()
            clean = flags[index]["clean"]["correct"]
            assert not clean or answer[0]["index"] != report["samples"][index]["label"]


def _evaluation_process(server: Server) -> psutil.Process:
    found: list[psutil.Process] = []

    def look() -> bool:
        for process in server.family():
            with suppress(psutil.NoSuchProcess):
                if "service.jobs.child" in process.cmdline():
                    found.append(process)
        return bool(found)

    assert wait_until(look, seconds=20)
    return found[0]


def test_serving_process_imports_neither_torch_nor_an_exporter_that_nobody_asked_for() -> None:
    code = (
        "import sys, service.app\nfrom service.tracing import start_tracing\n"
        "start_tracing('x')\nassert 'torch' not in sys.modules\n"
        "assert not any(name.startswith('opentelemetry.exporter') for name in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0

"""The service over a socket: `bentoml serve` of a built bento."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import bentoml
import httpx
import pytest
from bentoml.exceptions import BentoMLException, NotFound

from service.settings import ROOT
from tests.conftest import Once
from tests.service.conftest import png, wait_until
from tests.service.server import Server, built_bento, environment, serve


@pytest.fixture(scope="module")
def server(once: Once, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a built bento, started elsewhere, with the shipped models and samples."""
    folder = tmp_path_factory.mktemp("bento")
    bento = shutil.copytree(built_bento(once), folder / "bento")  # others read what was built
    (start := folder / "start").mkdir()
    # No runtime is measured beside the tests.
    with serve(str(bento), cwd=start, home=folder / "home", ASSAY_RUNTIME="onnx-cpu") as running:
        yield running
    assert {path.name for path in start.iterdir()} == {"state"}


def test_bentomls_client_is_told_what_is_wrong(server: Server, tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    image.write_bytes(png(size=28))
    with bentoml.SyncHTTPClient(server.url) as client:
        with pytest.raises(NotFound, match="unknown_model"):
            client.classify(images=[image], model="nope")  # type: ignore
        with pytest.raises(BentoMLException, match="not_a_file"):
            client.classify(images=["http://127.0.0.1:9/x.png"])  # type: ignore
    odd = {b"content-type": b"multipart/form-data; boundary=\xe9"}
    refused = httpx.post(f"{server.url}/classify", content=b"x", headers=odd)
    assert refused.json()["error"]["code"] == "malformed_multipart"


def test_built_bento_serves_from_anywhere(server: Server, once: Once) -> None:
    held = {path.name for path in (built_bento(once) / "src").iterdir()}
    assert held.isdisjoint({"tests", "training", "recipes", "benchmarks", "state", "runs"})
    answer = httpx.post(f"{server.url}/classify", files={"images": png(size=28)})
    assert answer.json()[0]["model"] == "fashion-elliptical"
    assert httpx.get(f"{server.url}/").status_code == 200
    samples = httpx.get(f"{server.url}/samples/index.json").json()
    file = samples[0]["file"]
    assert httpx.get(f"{server.url}/samples/{file}").headers["content-type"] == "image/png"


def test_pictures_of_an_evaluation_mislead_the_public_path(server: Server) -> None:
    """A whole evaluation of a shipped model: the 8-bit flags must be what `/classify` answers."""
    paths = sorted((ROOT / "artifacts" / "samples" / "fashion-mnist").glob("*/*.png"))[::8]
    spec = {"attacks": [{"name": "pgd", "eps": ["8/255"], "steps": 10}]}
    form = {"spec": json.dumps(spec), "labels": json.dumps([path.parent.name for path in paths])}
    files = [("images", (path.name, path.read_bytes())) for path in paths]
    accepted = httpx.post(f"{server.url}/v1/evaluations", data=form, files=files)
    assert accepted.status_code == 202, accepted.text
    job = f"{server.url}{accepted.headers['location']}"
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


# It looks for what refers to a generator, and the service hides what it has opened from that.
@pytest.mark.filterwarnings("ignore:It looks like .register_random.")
@pytest.mark.parametrize("cases", [25, pytest.param(10_000, marks=pytest.mark.slow)])
def test_every_answer_is_documented_and_none_is_a_server_error(server: Server, cases: int) -> None:
    """Requests made from the published document, as it says and not as it says."""
    from benchmarks import fuzz  # which takes seconds to import, in one worker of the tests

    found = fuzz.fuzz(server.url, cases=cases)
    assert found.cases >= cases and found.server_errors == 0, found.failures
    assert not found.failures and all(row.met for row in fuzz.rows(found))
    found = fuzz.Found({"GET /a": Counter({200: 3, 404: 1}), "GET /b": Counter({500: 2})})
    found.failures["GET /b", "500 ServerError"] = "curl"
    errors, kinds = fuzz.rows(found)
    assert (errors.measured, errors.samples, errors.met) == (2, 6, False)
    assert kinds.measured == 1 and "GET /b 500 ServerError" in kinds.case


def test_no_proxy_is_believed_that_is_not_named(server: Server) -> None:
    # Were this an https service, pages of http would be foreign.
    headers = {"origin": server.url, "x-forwarded-proto": "https", "x-forwarded-for": "8.8.8.8"}
    files = {"images": png(size=28)}
    assert httpx.post(f"{server.url}/classify", files=files, headers=headers).status_code == 200


def test_a_started_worker_keeps_what_it_opened_from_the_garbage_collector(tmp_path: Path) -> None:
    code = (
        "import asyncio, bentoml, gc\n"
        "bentoml.server_context.worker_index = 1\n"
        "from service.http.app import Gateway\nfrom service.settings import get_settings\n"
        "from service.worker import Worker\n"
        "worker = Worker(get_settings(), Gateway(), schema={}, evaluator_url=None)\n"
        "asyncio.run(worker.start())\nassert gc.get_freeze_count() > 100_000\nworker.close()"
    )
    settings = {"ASSAY_ROLE": "evaluate", "ASSAY_STATE": tmp_path, "ASSAY_RUN": tmp_path / "run"}
    started = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(tmp_path, settings), timeout=60
    )
    assert started.returncode == 0


def test_serving_process_imports_neither_torch_nor_an_exporter_that_nobody_asked_for() -> None:
    code = (
        "import sys, service.app, service.jobs.worker\nfrom service.tracing import start_tracing\n"
        "start_tracing('x')\nassert 'torch' not in sys.modules\n"
        "assert not any(name.startswith('opentelemetry.exporter') for name in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0

"""`/metrics`: what a Prometheus server would read."""

import subprocess
import sys
from pathlib import Path

import psutil
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from service.metrics import memory_of
from service.settings import ROOT
from tests.service.conftest import png


def parse(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families: dict[str, Metric], sample: str, **labels: str) -> float:
    samples = (s for family in families.values() for s in family.samples)
    return sum(s.value for s in samples if s.name == sample and labels.items() <= s.labels.items())


def read(client: TestClient) -> dict[str, Metric]:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return parse(answer.text)


def test_requests_and_batches_are_counted(client: TestClient) -> None:
    before = read(client)
    client.post("/classify", files=[("images", png(seed)) for seed in range(3)])
    client.post("/classify", files={"images": b"broken"})
    client.get("/nowhere/at/all")
    client.request("BREW", "/classify")
    after = read(client)

    def grown(sample: str, **labels: str) -> float:
        return value(after, sample, **labels) - value(before, sample, **labels)

    assert grown("assay_requests_total", route="/classify", method="POST", status="200") == 1
    assert grown("assay_requests_total", route="/classify", method="POST", status="415") == 1
    assert grown("assay_requests_total", route="unmatched", method="GET", status="404") == 1
    assert grown("assay_requests_total", route="/classify", method="other", status="405") == 1
    assert grown("assay_request_seconds_count", route="/classify") == 3
    for name in ("size", "queue_seconds", "compute_seconds"):
        batches = grown(f"assay_batch_{name}_count", model="fashion-elliptical")
        assert 1 <= batches <= 3, name
    assert grown("assay_batch_size_sum", model="fashion-elliptical") == 3
    assert value(after, "assay_queue_inputs") == 0
    assert value(after, "assay_requests_in_flight") == 1  # the one that asks


def test_state_is_told_whoever_is_asked(client: TestClient) -> None:
    families = read(client)
    states = {sample.labels["status"] for sample in families["assay_evaluations"].samples}
    assert states == {"queued", "running", "succeeded", "failed", "cancelled"}
    assert families["assay_attack_model_evaluations"].type == "counter"
    assert value(families, "assay_evaluator_alive") == 1
    assert value(families, "assay_memory_bytes", process="server") > 1e7


def test_memory_of_a_process_that_is_gone_is_none() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert memory_of(ended.pid) == {}
    assert set(memory_of(psutil.Process().pid)) >= {"server"}


_WORKER = """
import sys
from pathlib import Path
from service.metrics import Metrics, share_figures
share_figures(Path(sys.argv[1]))
metrics = Metrics()
metrics.began()
metrics.queued("m", 5)
metrics.batch("m", 4, 0.01, 0.02)
sys.stdout.write(metrics.exposition([]).decode())
"""


def test_any_worker_tells_of_all_and_forgets_the_queues_of_the_dead(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WORKER, str(tmp_path)]
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PATH": ""}
    # The first has ended when the second begins.
    _, text = (subprocess.check_output(command, cwd=ROOT, env=environment) for _ in range(2))
    families = parse(text.decode())
    assert value(families, "assay_batch_size_sum", model="m") == 8
    assert value(families, "assay_requests_in_flight") == 1
    assert value(families, "assay_queue_inputs", model="m") == 5

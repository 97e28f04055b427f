"""Traces, received as an OpenTelemetry collector would receive them."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from service.jobs.queue import JobStore
from service.jobs.worker import Evaluator
from service.settings import Settings
from tests.service.conftest import png, serving, wait_until

TRACE = "0af7651916cd43dd8448eb211c80319c"
Spans = list[tuple[str, Any]]


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """The spans that came over OTLP/HTTP, each with the name of its service."""
    spans: Spans = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
                for scope in resource.scope_spans:
                    spans.extend((attributes["service.name"], found) for found in scope.spans)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}"
        )
        yield spans
        server.shutdown()


def test_a_prediction_and_an_evaluation_are_traced_through_all_processes(
    collected: Spans, settings: Settings
) -> None:
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    spec = {"spec": json.dumps({"attacks": [{"name": "fgsm", "eps": ["8/255"]}]})}
    with serving(settings) as client:
        assert client.post("/classify", files={"images": png()}).status_code == 200
        asked = client.post(
            "/v1/evaluations", data=spec, files={"images": ("a.png", png())}, headers=headers
        )
        assert asked.status_code == 202, asked.text
        client.get("/readyz")
        store = JobStore(settings.database_url)
        loop = Evaluator(store, settings)
        loop.start()
        url = asked.headers["location"]
        assert wait_until(lambda: client.get(url).json()["status"] == "succeeded", seconds=150)
        # The process sends its spans after its result.
        assert wait_until(lambda: "evaluation" in {found.name for _, found in collected})
        loop.stop()
        store.close()
    named = {found.name: found for _, found in collected}
    request = named["POST /classify"]
    attributes = {each.key: each.value for each in request.attributes}
    assert attributes["http.route"].string_value == "/classify"
    assert attributes["http.response.status_code"].int_value == 200
    for name in ("decode", "queue and batch"):
        part = named[name]
        assert (part.trace_id, part.parent_span_id) == (request.trace_id, request.span_id)
    post = named["POST /v1/evaluations"]
    assert post.trace_id.hex() == TRACE and post.parent_span_id.hex() == "b7ad6b7169203331"
    evaluation = named["evaluation"]
    assert (evaluation.trace_id, evaluation.parent_span_id) == (post.trace_id, post.span_id)
    stages = [found for _, found in collected if found.name.startswith("stage ")]
    assert stages and {stage.parent_span_id for stage in stages} == {evaluation.span_id}
    assert {name for name, _ in collected} == {"assay", "assay-evaluation"}
    assert not [found for _, found in collected if "readyz" in found.name]

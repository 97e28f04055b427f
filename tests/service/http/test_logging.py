"""The line of every request, over the whole service in this process."""

import json
import logging
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.http.logging import FIELDS, JsonLines, OneLine, set_up_logs
from tests.service.conftest import png

LOGGER = "service.http.logging"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """The lines so far, as they are written."""
    caplog.set_level(logging.INFO, LOGGER)
    formatter = JsonLines()

    def read() -> list[dict[str, Any]]:
        records = [record for record in caplog.records if record.name == LOGGER]
        return [json.loads(formatter.format(record)) for record in records]

    return read


def test_a_request_is_one_line_of_json(client: TestClient, lines: Any) -> None:
    answer = client.post("/classify", files={"images": png()})
    (line,) = lines()
    assert line["request_id"] == answer.headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{32}", line["request_id"])
    assert (line["method"], line["route"], line["status"]) == ("POST", "/classify", 200)
    assert line["bytes"] == len(answer.content) and line["ms"] > 0
    assert line["model"] == "fashion-elliptical:1"
    assert line["level"] == "info" and line["time"].endswith("+00:00")


def test_a_request_id_is_taken_over_when_it_is_harmless(client: TestClient, lines: Any) -> None:
    fine = "trace-1.A_b"
    assert client.get("/v1/models", headers={"x-request-id": fine}).headers["x-request-id"] == fine
    for hostile in ("a b", "x" * 129, "", 'a"b', "<b>"):
        answer = client.get("/v1/models", headers={"x-request-id": hostile})
        assert answer.headers["x-request-id"] != hostile
    assert [line["request_id"] for line in lines()][0] == fine


def test_errors_have_their_line_and_none_holds_a_query_a_path_a_body_or_a_key(
    client: TestClient, lines: Any
) -> None:
    hidden = "hidden-value"
    headers = {"authorization": f"Bearer {hidden}", "x-api-key": hidden, "referer": hidden}
    for method, path in (("GET", f"/{hidden}?{hidden}"), ("PUT", f"/v1/models?key={hidden}")):
        assert client.request(method, path, headers=headers).headers["x-request-id"]
    client.get(f"/v1/models/{hidden}", headers=headers)
    client.post("/classify_text", json={"texts": [hidden]}, headers=headers)
    assert [(line["route"], line["status"]) for line in lines()] == [
        ("unmatched", 404),
        ("/v1/models", 405),
        ("/v1/models/{name}", 404),
        ("/classify_text", 200),
    ]
    assert hidden not in json.dumps(lines())


def test_probes_are_logged_only_when_they_fail(client: TestClient, lines: Any) -> None:
    for path in ("/livez", "/readyz", "/metrics"):
        assert client.get(path).status_code == 200
    assert lines() == []
    client.post("/readyz")
    assert [line["status"] for line in lines()] == [405]


def _record(message: str, **extra: Any) -> logging.LogRecord:
    record = logging.LogRecord("service.x", logging.WARNING, "", 1, message, (), None)
    record.__dict__.update(extra)
    return record


def test_a_message_cannot_forge_a_line_nor_an_exception() -> None:
    hostile = _record('a\n{"level": "error"}\x1b[2J')
    assert OneLine("%(message)s").format(hostile) == 'a\\n{"level": "error"}\\x1b[2J'
    assert json.loads(JsonLines().format(_record("m", **{FIELDS: {"status": 1}})))["status"] == 1
    try:
        raise RuntimeError("broken\nthing")
    except RuntimeError as error:
        hostile.exc_info = (type(error), error, error.__traceback__)
    line = JsonLines().format(hostile)
    assert "\n" not in line and "\x1b" not in line
    assert "broken" in json.loads(line)["exception"]


def test_loggers_write_text_to_standard_error_once(capsys: pytest.CaptureFixture[str]) -> None:
    loggers = [logging.getLogger(n) for n in ("", "bentoml", "circus", "uvicorn.error", "service")]
    before = [(x, x.handlers[:], x.propagate, x.level) for x in loggers]
    try:
        set_up_logs("text")
        logging.getLogger("service.thing").debug("never")
        logging.getLogger("service.thing").info("one")
        logging.getLogger("uvicorn.error").warning("two")
        shown = r"\S+ \S+ INFO service.thing: one\n\S+ \S+ WARNING uvicorn.error: two\n"
        assert re.fullmatch(shown, capsys.readouterr().err)
    finally:
        for logger, handlers, propagate, level in before:
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)

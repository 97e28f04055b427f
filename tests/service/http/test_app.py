"""What surrounds every route: errors in one shape, headers, and the way past BentoML's routes."""

import asyncio
import json
from typing import Any

import httpx2
import pytest
from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from service.app import Assay
from service.http.app import Gateway, create_app
from service.http.refusal import ApiError

BIG = {"content-length": str(10**12), "content-type": "multipart/form-data; boundary=B"}


def _answer(error: Exception) -> httpx2.Response:
    router = APIRouter()

    @router.get("/here")
    async def endpoint() -> None:
        raise error

    return TestClient(create_app(router.routes), raise_server_exceptions=False).get("/here")


def _error(response: httpx2.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "details"}
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "unsafe" not in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    return body["error"]


def test_own_errors_are_shown_and_unexpected_ones_tell_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    response = _answer(ApiError(429, "full", "Later.", {"limit": 1}, {"retry-after": "7"}))
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")
    assert _error(response) == {"code": "full", "message": "Later.", "details": {"limit": 1}}
    response = _answer(RuntimeError("secret of /etc/passwd"))
    assert (response.status_code, _error(response)["code"]) == (500, "internal_error")
    assert "secret" not in response.text
    assert "secret" in caplog.text


def test_an_error_is_short_and_can_be_sent_whatever_was_sent() -> None:
    response = _answer(ApiError(422, "odd", "\ud800" + "a" * 10**6, ["b" * 10**6]))
    assert response.status_code == 422 and len(response.content) < 65_536
    assert _error(response)["message"].startswith("?aaa")


def test_pages_answer_head_and_no_address_has_a_second_form(client: TestClient) -> None:
    assert client.head("/v1/models").status_code == client.head("/").status_code == 200
    missing = client.get("/v1/models/fashion-dot/")
    assert (missing.status_code, _error(missing)["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("status", "code"), [(400, "bad_request"), (418, "i'm_a_teapot"), (503, "unavailable")]
)
def test_foreign_error_loses_its_text(status: int, code: str) -> None:
    response = _answer(HTTPException(status, "File /srv/x.py"))
    assert (response.status_code, _error(response)["code"]) == (status, code)
    assert "/srv" not in response.text
    assert ("retry-after" in response.headers) == (status == 503)


def _ask(app: Any, method: str, path: str, headers: dict[str, str]) -> tuple[int, Any]:
    """The answer to a request whose body may not be read."""
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(k.encode(), v.encode()) for k, v in {"host": "localhost", **headers}.items()],
        "server": ("test", 80),
    }
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent[1:])
    is_json = dict(sent[0]["headers"]).get(b"content-type") == b"application/json"
    return sent[0]["status"], json.loads(body) if is_json else body


def registered() -> list[str]:
    """Every address that BentoML answers itself."""
    own: Any = Assay.to_asgi()
    return [route.path for route in own.routes if route.path not in ("", "/static_content")]


def test_bentoml_registers_the_addresses_that_are_handed_over() -> None:
    known = {"/livez", "/readyz", "/healthz", "/schema.json", "/classify", "/classify_text"}
    assert known | {"/", "/docs.json"} <= set(registered())


@pytest.mark.parametrize("path", registered())
def test_no_request_reaches_bentoml(client: TestClient, locked: TestClient, path: str) -> None:
    """Its own reader asks for no key, has no limit, and fetches URLs from file fields."""
    protected = path.startswith("/classify")
    status, answer = _ask(locked.app, "POST", path, BIG)
    expected = (401, "missing_key") if protected else (405, "method_not_allowed")
    if path == "/healthz":
        expected = (404, "not_found")  # only BentoML knows it
    assert (status, answer["error"]["code"]) == expected
    kind = {"content-type": "application/json"} if path == "/classify_text" else {}
    status, answer = _ask(client.app, "POST", path, BIG | kind)
    expected = (413, "body_too_large") if protected else expected
    assert (status, answer["error"]["code"]) == expected


def test_a_request_without_a_key_is_refused_before_its_body(locked: TestClient) -> None:
    evaluations = ("/v1/evaluations", "/v1/evaluations/cost")
    for path in ("/classify", "/classify_text", "/v2/models/fashion-dot/infer", *evaluations):
        for headers in (BIG, {"transfer-encoding": "chunked"}):
            assert _ask(locked.app, "POST", path, headers)[0] == 401


def test_the_gateway_answers_before_the_worker_has_started() -> None:
    status, answer = _ask(Gateway(), "GET", "/livez", {})
    assert (status, answer["error"]["code"]) == (503, "unavailable")

"""What surrounds every route: errors in one shape, headers, and the way past BentoML's routes."""

import asyncio
import json
from typing import Any

import httpx2
import pytest
from fastapi import APIRouter, Query
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.testclient import TestClient

from service.app import Assay
from service.http.app import Gateway, create_app
from service.http.errors import ApiError

BIG = {"content-length": str(10**12), "content-type": "multipart/form-data; boundary=B"}


def _client(answer: Response | Exception) -> TestClient:
    router = APIRouter()

    @router.get("/here")
    async def endpoint(limit: int = Query(1, ge=1)) -> Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return TestClient(create_app(router.routes), raise_server_exceptions=False)


def _error(response: httpx2.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "details"}
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "unsafe" not in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    return body["error"]


def test_own_error_is_shown_as_it_is() -> None:
    error = ApiError(429, "queue_full", "Later.", {"limit": 1}, {"retry-after": "7"})
    response = _client(error).get("/here")
    assert response.status_code == 429
    assert response.headers["retry-after"] == "7"
    assert _error(response) == {"code": "queue_full", "message": "Later.", "details": {"limit": 1}}


def test_unknown_address_method_and_query_have_the_shape() -> None:
    client = _client(JSONResponse("fine"))
    missing = client.get("/there")
    assert (missing.status_code, _error(missing)["code"]) == (404, "not_found")
    assert client.get("/here/").status_code == 404
    wrong = client.post("/here")
    assert (wrong.status_code, _error(wrong)["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "GET, HEAD, OPTIONS"
    assert client.head("/here").status_code == client.get("/here").status_code == 200
    refused = client.get("/here?limit=0")
    assert (refused.status_code, _error(refused)["code"]) == (422, "invalid_query")
    assert "limit" in _error(refused)["message"]


def test_unexpected_exception_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    response = _client(RuntimeError("secret of /etc/passwd")).get("/here")
    assert (response.status_code, _error(response)["code"]) == (500, "internal_error")
    assert "secret" not in response.text
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    ("status", "code"), [(400, "bad_request"), (418, "i'm_a_teapot"), (503, "unavailable")]
)
def test_foreign_error_loses_its_text(status: int, code: str) -> None:
    response = _client(HTTPException(status, "File /srv/x.py")).get("/here")
    assert (response.status_code, _error(response)["code"]) == (status, code)
    assert "/srv" not in response.text
    assert ("retry-after" in response.headers) == (status == 503)


def _ask(app: Any, method: str, path: str, headers: dict[str, str]) -> tuple[int, Any]:
    """The answer to a request whose body may not be read."""
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("test", 80),
        "client": ("test", 1),
        "root_path": "",
        "state": {},
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
    url = client.post(path, files={"images": (None, "http://127.0.0.1:9/x.png")})
    assert url.status_code == (415 if protected else expected[0])
    if path == "/classify":
        assert _error(url)["code"] == "not_a_file"


def test_a_request_without_a_key_is_refused_before_its_body(locked: TestClient) -> None:
    for path in ("/classify", "/classify_text", "/v1/evaluations", "/v1/evaluations/cost"):
        for headers in (BIG, {"transfer-encoding": "chunked"}):
            assert _ask(locked.app, "POST", path, headers)[0] == 401
    assert _ask(locked.app, "POST", "/v2/models/fashion-dot/infer", BIG)[0] == 401


def test_the_gateway_answers_before_the_worker_has_started() -> None:
    status, answer = _ask(Gateway(), "GET", "/livez", {})
    assert (status, answer["error"]["code"]) == (503, "unavailable")

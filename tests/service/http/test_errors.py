import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from service.http.errors import ApiError, ErrorShape, error_response, handle_api_error


def _app(answer: Response | Exception) -> TestClient:
    async def endpoint(_: Request) -> Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    app = Starlette(
        routes=[Route("/here", endpoint)], exception_handlers={ApiError: handle_api_error}
    )
    return TestClient(ErrorShape(app), raise_server_exceptions=False)


def _error(response: httpx2.Response) -> dict[str, object]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "details"}
    return body["error"]


def test_own_error_is_shown_as_it_is() -> None:
    error = ApiError(429, "queue_full", "Later.", {"limit": 1}, {"retry-after": "7"})
    response = _app(error).get("/here")
    assert response.status_code == 429
    assert response.headers["retry-after"] == "7"
    assert _error(response) == {"code": "queue_full", "message": "Later.", "details": {"limit": 1}}


def test_unknown_address_and_method_have_the_shape() -> None:
    client = _app(PlainTextResponse("fine"))
    missing = client.get("/there")
    assert (missing.status_code, _error(missing)["code"]) == (404, "not_found")
    wrong = client.post("/here")
    assert (wrong.status_code, _error(wrong)["code"]) == (405, "method_not_allowed")
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_unexpected_exception_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    response = _app(RuntimeError("secret of /etc/passwd")).get("/here")
    assert response.status_code == 500
    assert _error(response)["code"] == "internal_error"
    assert "secret" not in response.text
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    ("status", "code"), [(400, "bad_request"), (418, "i'm_a_teapot"), (503, "unavailable")]
)
def test_foreign_error_loses_its_text(status: int, code: str) -> None:
    foreign = JSONResponse({"error": "File /srv/x.py", "detail": []}, status_code=status)
    response = _app(foreign).get("/here")
    assert (response.status_code, _error(response)["code"]) == (status, code)
    assert "/srv" not in response.text
    assert ("retry-after" in response.headers) == (status == 503)


def test_error_with_the_shape_passes_unchanged() -> None:
    ours = error_response(ApiError(409, "conflict", "Taken.", headers={"x-more": "1"}))
    response = _app(ours).get("/here")
    assert (response.status_code, _error(response)["code"]) == (409, "conflict")
    assert response.headers["x-more"] == "1"

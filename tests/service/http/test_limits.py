import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from service.http.errors import ApiError, ErrorShape
from service.http.limits import BodyLimit, SecurityHeaders


async def _size(request: Request) -> Response:
    return JSONResponse(len(await request.body()))


@pytest.fixture
def client() -> TestClient:
    app = Starlette(routes=[Route("/", _size, methods=["POST"])])
    return TestClient(SecurityHeaders(ErrorShape(BodyLimit(app, 100, timeout_s=5))))


def _chunks(count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield b"x" * 10


def test_body_up_to_the_limit_passes(client: TestClient) -> None:
    assert client.post("/", content=b"x" * 100).json() == 100
    assert client.post("/", content=_chunks(10)).json() == 100


def test_announced_length_over_the_limit_is_413(client: TestClient) -> None:
    response = client.post("/", content=b"x" * 101)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


def test_false_length_and_chunks_over_the_limit_are_413(client: TestClient) -> None:
    assert client.post("/", content=_chunks(11)).status_code == 413
    lied = client.post("/", content=b"x" * 101, headers={"content-length": "1"})
    assert lied.status_code == 413


def test_body_that_never_ends_is_408() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def read(_: Any, receive: Any, __: Any) -> None:
        while True:
            await receive()

    async def main() -> None:
        scope = {"type": "http", "headers": []}
        with pytest.raises(ApiError) as late:
            await BodyLimit(read, 100, timeout_s=0.1)(scope, receive, receive)  # type: ignore
        assert (late.value.status, late.value.code) == (408, "upload_timeout")

    asyncio.run(main())


def test_every_answer_has_the_security_headers(client: TestClient) -> None:
    for response in (client.post("/"), client.get("/nothing")):
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert "unsafe" not in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"

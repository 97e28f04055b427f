"""How much is read of requests, and for how long."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from service.http.bodies import Bodies
from service.http.errors import ApiError
from service.settings import Settings


def _request(*chunks: bytes, pause_s: float = 0, **headers: str) -> Request:
    waiting = list(chunks)

    async def receive() -> Message:
        await asyncio.sleep(pause_s)
        body = waiting.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "headers": raw}, receive)


def _run(
    tmp_path: Path, test: Callable[[Bodies], Coroutine[Any, Any, None]], **limits: Any
) -> None:
    async def main() -> None:
        await test(Bodies(Settings(state=tmp_path, **limits)))

    asyncio.run(main())


def _now() -> float:
    return asyncio.get_running_loop().time()


def test_bytes_of_all_bodies_together_are_bounded(tmp_path: Path) -> None:
    async def test(bodies: Bodies) -> None:
        async with bodies.read(_request(bytes(900), bytes(500)), arrived=_now()) as first:
            assert len(first) == 1400  # alone it may be as large as one may be
            with pytest.raises(ApiError) as refused:
                async with bodies.read(_request(b"x"), arrived=_now()):
                    pass
            assert (refused.value.status, refused.value.code) == (503, "overloaded")
            assert refused.value.headers["retry-after"]
        async with bodies.read(_request(bytes(600)), arrived=_now()):
            async with bodies.read(_request(bytes(400)), arrived=_now()) as other:
                assert len(other) == 400

    _run(tmp_path, test, predict_bodies_mb=0.001)


def test_so_many_bodies_are_read_at_a_time(tmp_path: Path) -> None:
    async def test(bodies: Bodies) -> None:
        async def read() -> int:
            async with bodies.read(_request(b"x", pause_s=0.05), arrived=_now()) as body:
                return len(body)

        found = await asyncio.gather(*(read() for _ in range(5)), return_exceptions=True)
        assert [isinstance(each, ApiError) for each in found] == [False, False, True, True, True]
        assert await read() == 1

    _run(tmp_path, test, predict_queue=2)


def test_a_slow_sender_is_408(tmp_path: Path) -> None:
    async def test(bodies: Bodies) -> None:
        with pytest.raises(ApiError) as late:
            async with bodies.read(_request(b"x", b"y", pause_s=0.2), arrived=_now()):
                pass
        assert (late.value.status, late.value.code) == (408, "upload_timeout")
        with pytest.raises(ApiError):  # it counts from the arrival
            async with bodies.read(_request(b"x", pause_s=0.1), arrived=_now() - 1):
                pass

    _run(tmp_path, test, predict_timeout_s=0.3)


def test_a_sender_that_leaves_is_no_error_of_ours(tmp_path: Path) -> None:
    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def test(bodies: Bodies) -> None:
        request = Request({"type": "http", "method": "POST", "headers": []}, gone)
        with pytest.raises(ApiError) as left:
            async with bodies.read(request, arrived=_now()):
                pass
        assert left.value.status == 400

    _run(tmp_path, test)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity, gzip", " GZIP"])
def test_compressed_bodies_are_415(tmp_path: Path, encoding: str) -> None:
    async def test(bodies: Bodies) -> None:
        with pytest.raises(ApiError) as refused:
            async with bodies.read(_request(b"x", content_encoding=encoding), arrived=_now()):
                pass
        assert (refused.value.status, refused.value.code) == (415, "compressed_body")
        async with bodies.read(_request(b"x", content_encoding="identity"), arrived=_now()) as body:
            assert body == b"x"

    _run(tmp_path, test)

"""How much is read of requests, for how long, and what counts as a form."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import Message

from service.http import body
from service.http.body import Bodies, File, Upload
from service.http.refusal import ApiError
from service.settings import Settings

_HEAD = b'Content-Disposition: form-data; name="a"; filename="x.png"\r\n\r\n'


def _request(*chunks: bytes, pause_s: float = 0, host: str = "10.0.0.1", **headers: str) -> Request:
    waiting = list(chunks)

    async def receive() -> Message:
        await asyncio.sleep(pause_s)
        body = waiting.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "headers": raw, "client": (host, 1)}
    return Request(scope, receive)


async def _read(bodies: Bodies, request: Request) -> bytes:
    async with bodies.open(request) as body:
        return await body.read()


def _refusal(request: Request, **limits: Any) -> tuple[int, str]:
    async def main() -> None:
        await _read(Bodies.of_uploads(Settings(**limits)), request)

    with pytest.raises(ApiError) as refused:
        asyncio.run(main())
    return refused.value.status, refused.value.code


@pytest.mark.anyio
async def test_bytes_in_memory_are_bounded_for_each_sender_and_for_all() -> None:
    """Forty uploads of 30 of 60 MB held 1.2 GB; scaled down, they hold half of the limit."""
    bodies = Bodies.of_uploads(Settings(upload_bodies_mb=0.01, max_body_mb=0.004))
    requests = [_request(bytes(300), bytes(300), pause_s=0.02) for _ in range(40)]
    found = await asyncio.gather(*(_held(bodies, one) for one in requests), return_exceptions=True)
    refused = [each for each in found if isinstance(each, ApiError)]
    assert {(each.status, each.code) for each in refused} == {(503, "overloaded")}
    assert refused[0].headers["retry-after"]
    assert 4000 < sum(held for held in found if isinstance(held, int)) <= 5000
    async with bodies.open(_request(bytes(4000))) as largest:
        assert len(await largest.read()) == 4000
        assert len(await _read(bodies, _request(bytes(3000), host="10.0.0.2"))) == 3000


@pytest.mark.anyio
async def test_memory_of_large_bodies_is_given_back_once_soon_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(body, "return_memory", lambda: calls.append(True))
    monkeypatch.setattr(body, "_TIDY_S", 0.05)
    bodies = Bodies.of_predictions(Settings())
    for size in (1000, 2_000_000, 3_000_000):
        assert len(await _read(bodies, _request(bytes(size // 2), bytes(size // 2)))) == size
    await asyncio.sleep(0.2)
    assert calls == [True]


async def _held(bodies: Bodies, request: Request) -> int:
    async with bodies.open(request) as body:
        content = await body.read()
        await asyncio.sleep(0.1)
        return len(content)


@pytest.mark.anyio
async def test_one_sender_takes_half_of_the_places_and_others_find_one() -> None:
    bodies = Bodies.of_predictions(Settings(predict_queue=4))

    def slow(host: str = "10.0.0.1") -> Request:
        return _request(b"x", pause_s=0.05, host=host)

    hosts = ["10.0.0.1"] * 5 + ["10.0.0.2", "10.0.0.3"]
    reads = [_read(bodies, slow(host)) for host in hosts]
    found = await asyncio.gather(*reads, return_exceptions=True)
    assert [isinstance(each, ApiError) for each in found] == [False] * 2 + [True] * 3 + [False] * 2
    async with bodies.open(_request(b"x")) as first, bodies.open(_request(b"x")):
        await first.read()  # what is read leaves its place
        assert await _read(bodies, _request(b"x")) == b"x"


@pytest.mark.anyio
async def test_bodies_that_do_not_come_give_way_to_others_of_the_same_sender() -> None:
    """256 connections with two bytes each kept the predictions of everybody out for 30 s."""
    bodies = Bodies.of_predictions(Settings(predict_queue=16))
    silent = [asyncio.create_task(_read(bodies, _silent())) for _ in range(16)]
    await asyncio.sleep(0.01)
    assert sum(task.done() for task in silent) == 8  # refused at once
    assert await _read(bodies, _request(b"x", host="10.0.0.2")) == b"x"
    with pytest.raises(ApiError):  # it may yet come
        await _read(bodies, _request(b"x"))
    await asyncio.sleep(1.1)
    assert await _read(bodies, _request(b"x")) == b"x"
    await asyncio.sleep(0.01)
    (gone,) = [task for task in silent[:8] if task.done()]
    error = gone.exception()
    assert isinstance(error, ApiError) and (error.status, error.code) == (408, "upload_timeout")
    for task in silent:
        task.cancel()
    await asyncio.gather(*silent, return_exceptions=True)


def _silent() -> Request:
    """A request of which two bytes come, and no more."""
    request = _request(b"--", b"")
    parts = [request.receive]

    async def receive() -> Message:
        if not parts:
            await asyncio.Event().wait()
        return await parts.pop()()

    return Request(request.scope, receive)


@pytest.mark.anyio
async def test_a_body_must_keep_a_least_rate_and_may_pause() -> None:
    bodies = Bodies.of_uploads(Settings(body_stall_s=0.3))
    with pytest.raises(ApiError, match="too slowly, with less than 1 kB/s") as slow:
        await _read(bodies, _request(*[bytes(50)] * 20, pause_s=0.1))
    assert (slow.value.status, slow.value.code) == (408, "upload_timeout")
    assert len(await _read(bodies, _request(*[bytes(150)] * 5, pause_s=0.1))) == 750
    assert len(await _read(bodies, _request(bytes(500), bytes(500), pause_s=0.2))) == 1000


@pytest.mark.anyio
async def test_a_slow_sender_is_408() -> None:
    bodies = Bodies.of_predictions(Settings(predict_timeout_s=0.3))
    with pytest.raises(ApiError) as late:
        await _read(bodies, _request(b"x", b"y", pause_s=0.2))
    assert (late.value.status, late.value.code) == (408, "upload_timeout")


def test_a_body_over_the_limit_is_413_and_a_slow_one_408() -> None:
    limit = {"max_body_mb": 0.0001}
    assert _refusal(_request(content_length="101"), **limit) == (413, "body_too_large")
    parts = [b"x" * 10] * 11
    assert _refusal(_request(*parts), **limit) == (413, "body_too_large")
    slow = _request(b"x", b"y", pause_s=0.2)
    assert _refusal(slow, upload_timeout_s=0.1) == (408, "upload_timeout")
    lied = _request(*parts, content_length="1")
    assert _refusal(lied, **limit) == (413, "body_too_large")


def test_a_sender_that_leaves_and_compressed_bodies_are_no_errors_of_ours() -> None:
    async def gone() -> Message:
        return {"type": "http.disconnect"}

    request = Request({"type": "http", "method": "POST", "headers": []}, gone)
    assert _refusal(request) == (400, "incomplete_body")
    for encoding in ("gzip", "identity, gzip", " GZIP"):
        refused = _refusal(_request(b"x", content_encoding=encoding))
        assert refused == (415, "compressed_body")


def _body(*contents: bytes, end: bytes = b"--B--\r\n") -> bytes:
    return b"".join(b"--B\r\n" + _HEAD + content + b"\r\n" for content in contents) + end


class _Form(BaseModel):
    a: list[File]
    model: str | None = None


def _form(body: bytes, kind: str = "multipart/form-data; boundary=B", *, step: int = 999) -> _Form:
    chunks = [body[i : i + step] for i in range(0, len(body), step)] or [b""]

    async def main() -> _Form:
        bodies = Bodies.of_uploads(Settings())
        async with bodies.open(_request(*chunks, content_type=kind)) as sent:
            return await sent.form(_Form, max_files=9)

    return asyncio.run(main())


@pytest.mark.parametrize("step", [1 << 20, 7])
def test_contents_of_a_form_come_as_they_are(step: int) -> None:
    contents = [b"", b"\r\n", b"--B-", b"\r\n-B\r\n", b"\r\n--", bytes(range(256)) * 30]
    form = _form(_body(*contents), step=step)
    assert form.a == [Upload("x.png", content) for content in contents]
    assert _form(_body(b"x") + b"bye").a == [Upload("x.png", b"x")]


def test_what_a_form_may_hold() -> None:
    text = b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\n\xc3\xa4\r\n'
    assert _form(text + _body(b"x")).model == "ä"
    empty = b'--B\r\nContent-Disposition: form-data; name="a"; filename=""\r\n\r\n\r\n--B--'
    assert _form(empty).a == []
    assert _form(_body(b"x"), 'multipart/form-data; boundary="B"').a
    assert _form(b"model=m", "application/x-www-form-urlencoded").model == "m"
    with pytest.raises(ApiError, match="0.065536 MB"):
        _form(b"model=" + b"%61" * 30_000, "application/x-www-form-urlencoded")
    for sent, code in (
        (text + text + _body(), "duplicate_field"),
        (text.replace(b"model", b"other") + _body(), "unknown_field"),
        (text.replace(b"model", b"a") + _body(), "not_a_file"),
        (_body(*[b"x"] * 1000), "too_many_images"),
        (text * 65 + _body(), "too_many_fields"),
        (text.replace(b"\xc3\xa4", bytes(8_000_001)) + _body(), "body_too_large"),
        (_body(bytes(8_000_001)).replace(b'"a"', b'"model"'), "body_too_large"),
    ):
        with pytest.raises(ApiError) as refused:
            _form(sent, step=1 << 20)
        assert refused.value.code == code


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--",
        b"--BB\r\n" + _HEAD + b"x\r\n--B--",
        b"--B\n" + _HEAD + b"x\n--B--",
        _body(b"x", end=b""),
        _body(b"x", end=b"--"),
        b"hello\r\n" + _body(b"x"),
        _body(b"x")[:-8],
        _body(b"x", b"y" * 99)[:-20],  # no answer for the first file alone
        b"--B\r\nContent-Disposition: form-data\r\n\r\nx\r\n--B--",
        b"--B\r\n\r\nx\r\n--B--",
        b"--B\r\nX: " + b"x" * 9000 + b"\r\n" + _HEAD + b"x\r\n--B--",
    ],
)
def test_what_is_no_form_is_400(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        _form(body)
    assert (refused.value.status, refused.value.code) == (400, "malformed_multipart")


@pytest.mark.parametrize("given", ["", "boundary=", "boundary=" + "x" * 71, 'boundary="a b "'])
def test_a_boundary_is_needed(given: str) -> None:
    with pytest.raises(ApiError, match="boundary of 1 to 70 characters"):
        _form(_body(b"x"), f"multipart/form-data; {given}")

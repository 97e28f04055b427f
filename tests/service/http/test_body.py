"""How much is read of requests, for how long, and what counts as a form."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import Message

from service.http.body import Bodies, File, Upload, upload
from service.http.errors import ApiError
from service.settings import Settings

_HEAD = b'Content-Disposition: form-data; name="a"; filename="x.png"\r\n\r\n'


def _request(*chunks: bytes, pause_s: float = 0, **headers: str) -> Request:
    waiting = list(chunks)

    async def receive() -> Message:
        await asyncio.sleep(pause_s)
        body = waiting.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "headers": raw}, receive)


async def _read(bodies: Bodies, request: Request) -> bytes:
    async with bodies.open(request) as body:
        return await body.read()


def _refusal(request: Request, **limits: Any) -> tuple[int, str]:
    async def main() -> None:
        await upload(request, Settings(**limits)).read()

    with pytest.raises(ApiError) as refused:
        asyncio.run(main())
    return refused.value.status, refused.value.code


@pytest.mark.anyio
async def test_bytes_of_all_bodies_together_are_bounded() -> None:
    bodies = Bodies(Settings(predict_bodies_mb=0.001))
    async with bodies.open(_request(bytes(900), bytes(500))) as first:
        assert len(await first.read()) == 1400  # alone it may be as large as one may be
        with pytest.raises(ApiError) as refused:
            await _read(bodies, _request(b"x"))
        assert (refused.value.status, refused.value.code) == (503, "overloaded")
        assert refused.value.headers["retry-after"]
    async with bodies.open(_request(bytes(600))) as first:
        await first.read()
        assert len(await _read(bodies, _request(bytes(400)))) == 400


@pytest.mark.anyio
async def test_so_many_bodies_are_read_at_a_time() -> None:
    bodies = Bodies(Settings(predict_queue=2))
    reads = [_read(bodies, _request(b"x", pause_s=0.05)) for _ in range(5)]
    found = await asyncio.gather(*reads, return_exceptions=True)
    assert [isinstance(each, ApiError) for each in found] == [False, False, True, True, True]
    async with bodies.open(_request(b"x")) as first:
        await first.read()  # what is read leaves its place
        async with bodies.open(_request(b"x")):
            assert await _read(bodies, _request(b"x")) == b"x"


@pytest.mark.anyio
async def test_a_slow_sender_is_408() -> None:
    bodies = Bodies(Settings(predict_timeout_s=0.3))
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
        sent = upload(_request(*chunks, content_type=kind), Settings())
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
    for body, code in (
        (text + text + _body(), "duplicate_field"),
        (text.replace(b"model", b"other") + _body(), "unknown_field"),
        (text.replace(b"model", b"a") + _body(), "not_a_file"),
        (_body(*[b"x"] * 1000), "too_many_images"),
        (text * 65 + _body(), "too_many_fields"),
    ):
        with pytest.raises(ApiError) as refused:
            _form(body)
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

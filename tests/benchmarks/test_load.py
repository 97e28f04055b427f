"""The load generator against a small server of its own."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.support.load import (
    NO_ANSWER,
    Answer,
    drive,
    form_request,
    json_request,
    throughput,
    write_requests,
)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer 200 in two parts, 503 and a close to "/refused", nothing at all to "/broken"."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        if b"/broken" in head:
            break
        refused = b"/refused" in head
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 4\r\n" % (503 if refused else 200))
        writer.write((b"Connection: close\r\n" if refused else b"") + b"\r\nab")
        await writer.drain()
        await asyncio.sleep(0.001)
        writer.write(b"cd")
        if refused:
            break
    writer.close()


@pytest.fixture
def address() -> Iterator[str]:
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(_serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    server.close()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await _answer(reader, writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def test_every_answer_is_noted_with_its_status(address: str, tmp_path: Path) -> None:
    file = tmp_path / "requests"
    paths = ("/a", "/refused", "/broken")
    write_requests(file, [form_request(path, "p.png", b"\x00\r\n\r\n") for path in paths])
    answers = drive(file, address, connections=3, seconds=0.3)
    assert {answer.status for answer in answers} == {200, 503, NO_ANSWER}
    assert all(answer.seconds > 0 for answer in answers)
    with pytest.raises(RuntimeError, match=r"got \[0, 503\]"):
        throughput(answers)


def test_requests_are_due_at_their_rate(address: str, tmp_path: Path) -> None:
    file = tmp_path / "requests"
    write_requests(file, [json_request("/a", {"x": 1})])
    answers = drive(file, address, connections=2, seconds=0.5, rate=40)
    assert [answer.due for answer in answers] == pytest.approx([n / 40 for n in range(20)])


def test_throughput_ends_with_the_last_answer() -> None:
    answers = [Answer(0.0, 1.0, 200), Answer(0.5, 1.5, 200), Answer(1.0, 0.5, 200)]
    assert throughput(answers) == 1.5

"""A load generator in a process of its own, which `drive` starts.

Requests are complete before the clock starts, connections are kept, answers are read no further
than their length says, so that it costs little beside a server that shares its cores. It imports
nothing but the standard library.
"""

import argparse
import asyncio
import json
import re
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
NO_ANSWER = 0
"""Status of a request whose connection broke, or that was not answered in time."""
_LENGTH = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_CLOSE = re.compile(rb"connection: *close", re.IGNORECASE)
_BOUNDARY = "benchmark-5f3a"
# An answer may take as long as a server allows it to; a silent one must not hold the benchmark.
_PATIENCE_S = 60.0
_LATE_S = 0.5  # after the last moment: what was due just before is still sent


@dataclass(frozen=True, slots=True)
class Answer:
    """One request: when it was due and how long until its answer, in seconds, and the status."""

    due: float
    seconds: float
    status: int


def form_request(path: str, name: str, content: bytes, *, field: str = "images") -> bytes:
    """A complete HTTP request that posts one file in a form."""
    head = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    body = head.encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode()
    return _post(path, f"multipart/form-data; boundary={_BOUNDARY}", body)


def json_request(path: str, body: object) -> bytes:
    """A complete HTTP request that posts JSON."""
    return _post(path, "application/json", json.dumps(body).encode())


def write_requests(file: Path, requests: Sequence[bytes]) -> None:
    """Store requests for `drive`."""
    file.write_bytes(b"".join(struct.pack(">I", len(r)) + r for r in requests))


def drive(
    file: Path, address: str, *, connections: int, seconds: float, rate: float | None = None
) -> list[Answer]:
    """Send stored requests in turn, from a process of its own, for some seconds.

    Args:
        file: from `write_requests`.
        address: such as "http://127.0.0.1:4711".
        connections: at most so many at a time.
        seconds: how long requests are sent; those under way are waited for.
        rate: requests per second, each due at its time whether or not earlier ones were
            answered, its time counting from then on; None: as soon as a connection is free.

    Returns:
        The answers, by the time at which they were due.

    Raises:
        RuntimeError: the process failed.
    """
    command = [sys.executable, "-m", "benchmarks.support.load", str(file), address]
    command += ["--connections", str(connections), "--seconds", str(seconds)]
    command += [] if rate is None else ["--rate", str(rate)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the load generator failed: {done.stderr[-2000:]}")
    return [Answer(*row) for row in json.loads(done.stdout)]


def throughput(answers: Sequence[Answer]) -> float:
    """Answers per second, from the first request to the last answer.

    Raises:
        RuntimeError: a request was not answered with success.
    """
    others = sorted({answer.status for answer in answers} - {200})
    if others or not answers:
        raise RuntimeError(f"every request must succeed, got {others or 'no answer'}")
    return len(answers) / max(answer.due + answer.seconds for answer in answers)


def _post(path: str, content_type: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Connection(asyncio.Protocol):
    """One kept connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[int] | None = None
        self.usable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        if isinstance(transport, asyncio.WriteTransport):
            self._transport = transport

    def ask(self, request: bytes) -> asyncio.Future[int]:
        """Send a request; the future is its answer's status."""
        self._received.clear()
        self._answer = asyncio.get_running_loop().create_future()
        if self._transport is not None:
            self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer."""
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end])
        length = _LENGTH.search(head)
        if len(self._received) >= end + 4 + (int(length[1]) if length else 0):
            self.usable = self.usable and not _CLOSE.search(head)
            self._finish(int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.usable = False
        self._finish(NO_ANSWER)

    def close(self) -> None:
        """Close the connection."""
        self.usable = False
        if self._transport is not None:
            self._transport.close()

    def _finish(self, status: int) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(status)


class Generator:
    """Sends requests over kept connections and notes how they were answered.

    Args:
        address: host and port.
        requests: what to send, in turn.
        connections: at most so many at a time.
    """

    def __init__(
        self, address: tuple[str, int], requests: Sequence[bytes], connections: int
    ) -> None:
        self._address = address
        self._requests = requests
        self._connections = connections
        self._sent = 0
        self._begin = 0.0
        self._answers: list[tuple[float, float, int]] = []

    async def closed(self, seconds: float) -> list[tuple[float, float, int]]:
        """Every connection sends its next request when it has its answer."""
        self._begin = time.perf_counter()
        await asyncio.gather(
            *(self._one_after_the_other(seconds) for _ in range(self._connections))
        )
        return sorted(self._answers)

    async def open(self, seconds: float, rate: float) -> list[tuple[float, float, int]]:
        """Requests are due at a fixed rate; one without a free connection waits for one."""
        self._begin = time.perf_counter()
        due: asyncio.Queue[float | None] = asyncio.Queue()
        senders = [
            asyncio.create_task(self._as_due(due, seconds)) for _ in range(self._connections)
        ]
        for number in range(int(seconds * rate)):
            moment = number / rate
            if (early := moment - self._now()) > 0:
                await asyncio.sleep(early)
            due.put_nowait(moment)
        for _ in senders:
            due.put_nowait(None)
        await asyncio.gather(*senders)
        return sorted(self._answers)

    async def _one_after_the_other(self, seconds: float) -> None:
        connection = None
        while (moment := self._now()) < seconds:
            connection = await self._ask(connection, moment)
        if connection is not None:
            connection.close()

    async def _as_due(self, due: asyncio.Queue[float | None], seconds: float) -> None:
        connection = None
        while (moment := await due.get()) is not None:
            if self._now() < seconds + _LATE_S:
                connection = await self._ask(connection, moment)
            else:  # what found no connection in time was not answered either
                self._answers.append((moment, self._now() - moment, NO_ANSWER))
        if connection is not None:
            connection.close()

    async def _ask(self, connection: Connection | None, due: float) -> Connection | None:
        """Send the next request; returns the connection, None when it cannot be used again."""
        request = self._requests[self._sent % len(self._requests)]
        self._sent += 1
        status = NO_ANSWER
        with suppress(OSError, TimeoutError):
            if connection is None or not connection.usable:
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(Connection, *self._address)
            status = await asyncio.wait_for(connection.ask(request), _PATIENCE_S)
        self._answers.append((due, self._now() - due, status))
        if connection is not None and (status == NO_ANSWER or not connection.usable):
            connection.close()
            connection = None
        return connection

    def _now(self) -> float:
        return time.perf_counter() - self._begin


def _read_requests(file: Path) -> list[bytes]:
    data, requests, at = file.read_bytes(), [], 0
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        requests.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return requests


def main(argv: Sequence[str] | None = None) -> int:
    """Send the requests and write [due, seconds, status] of each as JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.support.load", description=__doc__)
    parser.add_argument("requests", type=Path)
    parser.add_argument("address")
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=float)
    options = parser.parse_args(argv)
    url = urlsplit(options.address)
    generator = Generator(
        (url.hostname or "127.0.0.1", url.port or 80),
        _read_requests(options.requests),
        options.connections,
    )
    if options.rate is None:
        answers = asyncio.run(generator.closed(options.seconds))
    else:
        answers = asyncio.run(generator.open(options.seconds, options.rate))
    sys.stdout.write(json.dumps([(round(d, 6), round(s, 6), status) for d, s, status in answers]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

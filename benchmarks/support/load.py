"""A load generator in a process of its own, which `drive` starts.

Requests are complete before the clock starts, connections are kept, answers are read no further
than their length says, so that it costs little beside a server that shares its cores. It imports
nothing but the standard library.
"""

import asyncio
import itertools
import json
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
CONNECTIONS = 16  # of usual load
NO_ANSWER = 0
"""Status of a request whose connection broke, or that was not answered in time."""
_LENGTH = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_CLOSE = re.compile(rb"connection: *close", re.IGNORECASE)
_BOUNDARY = "benchmark-5f3a"
# An answer may take as long as a server allows it to; a silent one must not hold the benchmark.
_PATIENCE_S = 60.0
_SUSTAINED_S = 6.0
_LATE_S = 0.5  # after the last moment: what was due just before is still sent
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Answer(NamedTuple):
    """One request: when it was due and how long until its answer, in seconds, and the status."""

    due: float
    seconds: float
    status: int


def form_request(path: str, name: str, content: bytes) -> bytes:
    """A complete HTTP request that posts one image file in a form."""
    head = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="{name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    body = head.encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode()
    return _post(path, f"multipart/form-data; boundary={_BOUNDARY}", body)


def json_request(path: str, body: object) -> bytes:
    """A complete HTTP request that posts JSON."""
    return _post(path, "application/json", json.dumps(body).encode())


def drive(
    requests: Sequence[bytes],
    address: str,
    *,
    connections: int,
    seconds: float,
    rate: float | None = None,
) -> list[Answer]:
    """Send requests in turn, from a process of its own, for some seconds.

    Args:
        requests: complete ones, see `form_request`.
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
    told = pickle.dumps((address, requests, seconds, rate, connections))
    command = [sys.executable, "-m", "benchmarks.support.load"]
    done = subprocess.run(command, cwd=ROOT, input=told, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"the load generator failed: {done.stderr[-2000:].decode()}")
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


def sustained(requests: Sequence[bytes], address: str) -> float:
    """Answers per second at `CONNECTIONS` connections, measured after as long a warm-up."""
    drive(requests, address, connections=CONNECTIONS, seconds=_SUSTAINED_S)
    return throughput(drive(requests, address, connections=CONNECTIONS, seconds=_SUSTAINED_S))


def _post(path: str, content_type: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Generator:
    """Sends requests over kept connections and notes how they were answered.

    Args:
        url: host and port.
        requests: what to send, in turn.
        seconds: how long.
        rate: see `drive`.
    """

    def __init__(
        self, url: str, requests: Sequence[bytes], seconds: float, rate: float | None
    ) -> None:
        split = urlsplit(url)
        self._address = split.hostname or "127.0.0.1", split.port or 80
        self._requests, self._seconds, self._rate = itertools.cycle(requests), seconds, rate
        self._begin, self._taken = 0.0, itertools.count()
        self._answers: list[Answer] = []

    async def run(self, connections: int) -> list[Answer]:
        """What became of every request, by the time at which it was due."""
        self._begin = time.perf_counter()
        await asyncio.gather(*(self._one_after_the_other() for _ in range(connections)))
        return sorted(self._answers)

    async def _one_after_the_other(self) -> None:
        connection: _Connection | None = None
        while (due := self._next_due()) < self._seconds:
            if (early := due - self._now()) > 0:
                await asyncio.sleep(early)
            status, used = NO_ANSWER, connection
            if self._now() < self._seconds + _LATE_S:  # later is not answered either
                try:
                    used = connection or await asyncio.open_connection(*self._address)
                    status, kept = await asyncio.wait_for(self._ask(used), _PATIENCE_S)
                    connection = used if kept else None
                except (OSError, EOFError, TimeoutError):
                    connection = None
            self._answers.append(Answer(round(due, 6), round(self._now() - due, 6), status))
            if used is not None and connection is None:
                used[1].close()
        if connection is not None:
            connection[1].close()

    async def _ask(self, connection: _Connection) -> tuple[int, bool]:
        """Send the next request: its answer's status, and whether the connection is kept."""
        reader, writer = connection
        writer.write(next(self._requests))
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        await reader.readexactly(int(length[1]) if length else 0)
        return int(head[9:12]), not _CLOSE.search(head)

    def _next_due(self) -> float:
        return next(self._taken) / self._rate if self._rate else self._now()

    def _now(self) -> float:
        return time.perf_counter() - self._begin


def main() -> None:
    """Send the requests and write [due, seconds, status] of each as JSON."""
    *told, connections = pickle.load(sys.stdin.buffer)
    sys.stdout.write(json.dumps(asyncio.run(Generator(*told).run(connections))))


if __name__ == "__main__":
    main()

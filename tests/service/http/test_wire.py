"""Bytes on the wire: what a sender may do that is no decent client, over a real server."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from service.http.connections import admit_newcomers
from service.settings import ROOT
from tests.service.conftest import wait_until
from tests.service.server import QUICK, Server, serve


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("wire")
    limits = {"ASSAY_HEADER_TIMEOUT_S": 0.5, "ASSAY_MAX_BODY_MB": 1, "ASSAY_UPLOAD_TIMEOUT_S": 1}
    options = {**QUICK, **limits, "ASSAY_ROLE": "predict", "ASSAY_WORKERS": 2}
    options["ASSAY_HOSTS"] = "127.0.0.1,a"
    with TemporaryDirectory(prefix="a") as short:  # the path of a socket is short
        run = options["ASSAY_RUN"] = Path(short) / "run"
        with serve(str(ROOT), cwd=folder, home=folder / "home", **options) as running:
            yield running
        assert not run.exists()


def parts(answer: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and error code of the first answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): text for name, _, text in (line.partition(": ") for line in lines)}
    error = json.loads(body)["error"] if body.startswith(b'{"error"') else {"code": None}
    return int(status.split()[1]), headers, error["code"]


GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /classify HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
POST += b"Content-Type: multipart/form-data; boundary=B\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\n\r\n",
        POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        POST + b"Transfer-Encoding: gzip\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        GET + b"X-Long: " + b"a" * 200_000 + b"\r\n\r\n",
    ],
)
def test_what_is_not_http_is_400_in_our_shape(server: Server, request_bytes: bytes) -> None:
    status, headers, code = parts(server.send(request_bytes))
    assert (status, code) == (400, "malformed_http")
    assert headers["connection"] == "close" and headers["x-content-type-options"] == "nosniff"


NEXT = GET + b"\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\ncontent-length: 0\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        *(
            POST + b"Content-Length: " + length + b"\r\n\r\nab"
            for length in (b"+2", b"0x2", b"1_0")
        ),
        POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        GET + b"X: a\n\r\n",
        GET + b"\n",
        GET.replace(b"\r\n", b"\n") + b"\n",
        GET + b"X: a\r\n b\r\n\r\n",
        GET + b"X: a\r\n\tb\r\n\r\n",
        GET + b"X: a\rb\r\n\r\n",
        GET + b"X: a\0b\r\n\r\n",
        GET + b"Host: b\r\n\r\n",
    ],
)
def test_a_head_that_a_proxy_may_read_otherwise_is_400_and_ends_the_connection(
    server: Server, request_bytes: bytes
) -> None:
    request_bytes = request_bytes.replace(b"Connection: close\r\n", b"")
    answer = server.send(request_bytes, NEXT, wait=2)
    assert b"HTTP/1.1 200" not in answer  # what follows is nobody's request
    status, headers, code = parts(answer)
    assert (status, code, headers["connection"]) == (400, "malformed_http", "close")


def test_a_body_may_hold_lines_of_every_kind(server: Server) -> None:
    body = b"\n a\n\tb\r\n\r\n"
    length = f"Content-Length: {len(body)}\r\n\r\n".encode()
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    for request in (POST + length + body, POST + chunked):
        assert parts(server.send(request))[2] == "malformed_multipart"
    first, *rest = (bytes([byte]) for byte in NEXT)
    answer = server.send(first, *rest, GET + b"Connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize(("size", "expected"), [(1, 400), (100, 415)])
def test_a_body_may_not_come_in_thousands_of_tiny_chunks(
    server: Server, size: int, expected: int
) -> None:
    head = POST.replace(b"multipart/form-data; boundary=B", b"text/plain")
    body = b"%x\r\n%s\r\n" % (size, b"a" * size) * 1100
    request = head + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"
    assert parts(server.send(request))[0] == expected


@pytest.mark.parametrize("method", [b"BREW", b"get", b"TRACE", b"CONNECT", b"PROPFIND", b"X" * 99])
def test_unknown_methods_are_405(server: Server, method: bytes) -> None:
    answer = server.send(method + b" /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    status, headers, code = parts(answer)
    assert (status, code) == (405, "method_not_allowed")
    assert headers["allow"] == "GET, HEAD, OPTIONS"


def test_old_and_pipelined_requests_are_answered_and_switches_ignored(server: Server) -> None:
    assert parts(server.send(b"GET /livez HTTP/1.0\r\n\r\n"))[0] == 200
    switch = b"Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    switch += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    assert parts(server.send(GET + switch))[0] == 200
    last = b"GET /nowhere HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answer = server.send(GET + b"\r\n" + last)
    assert answer.index(b"HTTP/1.1 200") < answer.index(b"HTTP/1.1 404")


@pytest.mark.parametrize("begin", [b"", GET + b"X-Slow: "])
def test_headers_that_do_not_come_are_408(server: Server, begin: bytes) -> None:
    began = time.monotonic()
    status, headers, code = parts(server.send(begin))
    assert (status, code, headers["connection"]) == (408, "header_timeout", "close")
    assert time.monotonic() - began >= 0.4


def test_headers_that_drip_and_bodies_that_do_not_come_are_408(server: Server) -> None:
    first = GET + b"\r\n"
    answer = server.send(first, b"GET /v1/models HTTP/1.1\r\n", b"Host: a\r\n", pause=0.2)
    assert answer.startswith(b"HTTP/1.1 200") and b"408 Request Timeout" in answer
    status, _, code = parts(server.send(POST + b"Content-Length: 100\r\n\r\n--B"))
    assert (status, code) == (408, "upload_timeout")


NOT_OURS = """/healthz /docs/ /static_content/main.js /assets/index.js /classify/submit
/classify/status /openapi.json /.git/config /..%2f..%2fetc/passwd /samples/..%2f..%2fREADME.md
/samples/%2e%2e/%2e%2e/pyproject.toml //etc/passwd /style.css%00.png /..%2fapp.py"""


@pytest.mark.parametrize("path", NOT_OURS.split())
def test_what_is_not_ours_is_404_in_our_shape(server: Server, path: str) -> None:
    target = path.encode()
    answer = server.send(b"GET " + target + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    status, headers, code = parts(answer)
    assert (status, code) == (404, "not_found")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert str(ROOT).encode() not in answer


def test_the_log_is_json_lines_of_all_processes_and_no_secret(server: Server) -> None:
    answer = httpx.get(f"{server.url}/v1/models?secret=hidden-one", headers={"x-api-key": "hidden"})
    asked = answer.headers["x-request-id"]

    def logged() -> list[dict[str, Any]]:
        return [line for line in server.lines() if line.get("request_id") == asked]

    assert wait_until(lambda: bool(logged()), seconds=10)  # it is written after the answer
    (line,) = logged()
    assert (line["route"], line["status"]) == ("/v1/models", 200)
    log = server.log.read_text()
    assert "hidden" not in log and f"Ready: open {server.url}" in log
    plain = [text for text in log.splitlines() if text and text[0] != "{"]
    assert not plain, plain[:5]


def test_newcomers_to_a_closing_socket_are_ignored_while_those_who_wait_are_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with socket.create_connection(address, timeout=5) as waiting:
            admit_newcomers(listener, admit=False)
            with pytest.raises(TimeoutError):
                socket.create_connection(address, timeout=0.3)
            accepted, _ = listener.accept()
            with accepted:
                waiting.sendall(b"a request")
                assert accepted.recv(100) == b"a request"
        admit_newcomers(listener, admit=True)
        socket.create_connection(address, timeout=5).close()


def test_two_workers_count_together(server: Server) -> None:
    before = _answered(server)
    for _ in range(10):
        httpx.get(f"{server.url}/v1/models")
    wait_until(lambda: _answered(server) - before >= 10, seconds=10)  # counted after the answer
    assert _answered(server) - before == 10


def _answered(server: Server) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    assert "assay_evaluator_alive" not in text  # nothing is said of what this host has not
    name = 'assay_requests_total{method="GET",route="/v1/models",status="200"}'
    return sum(float(x.split()[-1]) for x in text.splitlines() if x.startswith(name))

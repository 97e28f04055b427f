"""The load generator against a small server of its own."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.support.load import NO_ANSWER, Answer, drive, form_request, json_request, throughput


class Handler(BaseHTTPRequestHandler):
    """Answers 200, 503 and a close to "/refused", nothing at all to "/broken"."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.close_connection = self.path != "/a"
        if self.path != "/broken":
            self.send_response(503 if self.close_connection else 200)
            self.send_header("Connection", "close" if self.close_connection else "keep-alive")
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"abcd")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_answers_have_their_status_and_time_and_give_a_throughput(address: str) -> None:
    paths = ("/a", "/refused", "/broken")
    requests = [form_request(path, "p.png", b"\x00\r\n\r\n\xff") for path in paths]
    answers = drive(requests, address, connections=3, seconds=0.3)
    assert {answer.status for answer in answers} == {200, 503, NO_ANSWER}
    assert all(answer.seconds > 0 for answer in answers)
    with pytest.raises(RuntimeError, match=r"got \[0, 503\]"):
        throughput(answers)
    requests = [json_request("/a", {"x": 1})]
    answers = drive(requests, address, connections=2, seconds=0.5, rate=40)
    assert [answer.due for answer in answers] == pytest.approx([n / 40 for n in range(20)])
    answers = [Answer(0.0, 1.0, 200), Answer(0.5, 1.5, 200), Answer(1.0, 0.5, 200)]
    assert throughput(answers) == 1.5

"""A listening socket that is about to close."""

import socket
from collections.abc import Iterator

import pytest

from service.http.connections import admit_newcomers


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(5)
        yield sock


def test_newcomers_are_ignored_while_those_who_wait_are_not(listener: socket.socket) -> None:
    address = listener.getsockname()
    with socket.create_connection(address, timeout=5) as waiting:
        admit_newcomers(listener, admit=False)
        with pytest.raises(TimeoutError):
            socket.create_connection(address, timeout=0.3)
        accepted, _ = listener.accept()
        with accepted:
            waiting.sendall(b"a request")
            assert accepted.recv(100) == b"a request"
            accepted.sendall(b"an answer")
            assert waiting.recv(100) == b"an answer"


def test_newcomers_are_admitted_again(listener: socket.socket) -> None:
    admit_newcomers(listener, admit=True)  # nothing was refused: nothing happens
    admit_newcomers(listener, admit=False)
    admit_newcomers(listener, admit=True)
    socket.create_connection(listener.getsockname(), timeout=5).close()

"""Connections: what a sender may do before its request is read, and how a server stops.

uvicorn waits for ever for the end of a request's headers, and answers what it cannot read with
plain text. A stopping worker closes its listening socket while connections still wait in it, which
their senders see as an error. Both are put right here, on the server that runs in this process.
"""

import asyncio
import ctypes
import errno
import json
import logging
import os
import re
import select
import signal
import socket
import struct
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

_LOOK_S = 0.05
_HANDSHAKE_S = 0.05  # in which a connection that has begun is complete
_LAST_CONNECTIONS_S = 1.0
_LAST_REQUESTS_S = 2.0

_FREE_CHUNKS, _BYTES_PER_CHUNK = 1000, 64  # each costs some microseconds, however short it is

_END_OF_HEAD = re.compile(rb"\n\r?\n")
_BARE_LF_OR_FOLD = re.compile(rb"(?<!\r)\n|\n[ \t]")

# A filter of the kernel (classic BPF) that drops TCP segments with SYN and without ACK.
_INSTRUCTIONS = (
    (0x30, 0, 0, 13),  # load the byte of the flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # only SYN: next, else skip one
    (0x06, 0, 0, 0),  # drop it
    (0x06, 0, 0, 0xFFFFFFFF),  # take it
)
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # of Linux


def running_server() -> uvicorn.Server | None:
    """The uvicorn server of this process: BentoML makes it and tells nobody."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return server if isinstance(server, uvicorn.Server) else None


async def address_when_ready(server: uvicorn.Server) -> str:
    """Where a browser on this host finds the server, once it answers."""
    while not server.started:
        await asyncio.sleep(_LOOK_S)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class StrictConnection(h11.Connection):
    """Refuses heads of requests that a proxy might read otherwise than h11 (request smuggling).

    They have both lengths of a body, lines that end with LF alone, or headers over several lines.
    RFC 9112 wants the connection closed after the first, in 6.1, and lets a server refuse the
    others, in 2.2 and 5.2; no client of today sends any of them. It also refuses a body in
    thousands of chunks of a few bytes, which would hold the event loop.
    """

    _chunks = _body_bytes = 0

    def next_event(self) -> Any:
        """The next part of what has come.

        Raises:
            h11.RemoteProtocolError: it is not to be answered.
        """
        head = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            end = _END_OF_HEAD.search(head)
            ambiguous = end is None or _BARE_LF_OR_FOLD.search(head, 0, end.end())
            if ambiguous or {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("the head of the request is ambiguous")
            self._chunks = self._body_bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._body_bytes += len(event.data)
            if self._chunks > _FREE_CHUNKS + self._body_bytes // _BYTES_PER_CHUNK:
                raise h11.RemoteProtocolError("the body comes in too many chunks")
        return event


class GuardedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for headers, which uvicorn lacks, and errors in our shape.

    Without the limit, 500 connections that send a byte now and then are held for ever (slowloris).
    """

    header_timeout_s = 10.0
    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = StrictConnection(h11.SERVER)

    @classmethod
    def within(cls, header_timeout_s: float) -> type["GuardedProtocol"]:
        """The protocol with a time limit of its own."""
        return type(cls.__name__, (cls,), {"header_timeout_s": header_timeout_s})

    def connection_made(self, transport: asyncio.Transport) -> None:
        """A connection is open: its first request must come."""
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """A part of a request has come."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._deadline is None and not self.transport.is_closing():
            self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self._refuse(
            400,
            "malformed_http",
            "This is no request in HTTP/1.1 or 1.0, or one in too many chunks.",
        )

    def _should_upgrade(self) -> bool:
        return False

    def _wait_for_headers(self) -> None:
        self._deadline = self.loop.call_later(self.header_timeout_s, self._too_late)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        message = f"The headers were not complete after {self.header_timeout_s:g} s."
        self._refuse(408, "header_timeout", message)

    def _refuse(self, status: int, code: str, message: str) -> None:
        error = {"code": code, "message": message, "details": None}
        body = json.dumps({"error": error}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        headers += [("x-content-type-options", "nosniff"), ("connection", "close")]
        reason = HTTPStatus(status).phrase.encode()
        answer = h11.Response(status_code=status, headers=headers, reason=reason)
        try:
            for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass  # an answer has begun, and ends with the connection
        self.transport.close()


class GracefulShutdown:
    """Stops a worker without losing a request: uvicorn alone resets connections that still wait.

    On SIGTERM `on_begin` is called, and `/readyz` says so for `delay_s`; then nobody new gets as
    far as a connection, everyone who has one is accepted, the socket is closed for all workers, and
    uvicorn finishes what is in flight.

    Args:
        server: the server of this process.
        delay_s: seconds between the signal and the last connection.
        on_begin: called at the signal.
    """

    def __init__(
        self, server: uvicorn.Server, *, delay_s: float, on_begin: Callable[[], None]
    ) -> None:
        self._server = server
        self._delay_s = delay_s
        self._on_begin = on_begin
        self._task: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Take over SIGTERM; called in the event loop."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._begin)
        loop.set_exception_handler(self._on_error)

    def _begin(self) -> None:
        if self._task is None:
            self._on_begin()
            self._task = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        await asyncio.sleep(self._delay_s)
        for listener in self._listeners():
            admit_newcomers(listener, admit=False)
        await asyncio.sleep(_HANDSHAKE_S)
        # The loop accepts who has connected; uvicorn closes connections without a request.
        await _while(self._has_pending, seconds=_LAST_CONNECTIONS_S)
        self._close()
        await _while(self._has_silent, seconds=_LAST_REQUESTS_S)
        self._server.handle_exit(signal.SIGTERM, None)

    def _listeners(self) -> list[Any]:
        return [sock for server in self._server.servers for sock in server.sockets]

    def _has_pending(self) -> bool:
        listeners = [sock.fileno() for sock in self._listeners()]
        return bool(listeners and select.select(listeners, [], [], 0)[0])

    def _has_silent(self) -> bool:
        connections: Any = self._server.server_state.connections
        return any(connection.cycle is None for connection in connections)

    def _close(self) -> None:
        # The parent and other workers hold the same socket: only a shutdown makes the kernel
        # refuse connections that nobody would answer.
        for listener in self._listeners():
            with socket.socket(fileno=os.dup(listener.fileno())) as sock:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    logger.debug("Another worker has closed the socket")
        self._stop_listening()

    def _stop_listening(self) -> None:
        for server in self._server.servers:
            server.close()

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Accepting fails when another worker shut the socket down."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno != errno.EINVAL:
            loop.default_exception_handler(context)
        elif self._task is not None:
            self._stop_listening()
        else:  # only that worker has left
            for listener in self._listeners():
                with socket.socket(fileno=os.dup(listener.fileno())) as sock:
                    admit_newcomers(sock, admit=True)
                    sock.listen(self._server.config.backlog)


def admit_newcomers(listener: Any, *, admit: bool) -> None:
    """Let the kernel take or ignore the first packet of new connections to a listening socket.

    Whoever connects between the last look at those who wait and the shutdown would lose a request;
    a client that is ignored tries again after a second, and is refused.

    Args:
        listener: a listening socket; what is set holds for every process that has it.
        admit: False ignores newcomers, True admits them again.
    """
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in _INSTRUCTIONS)
    program = ctypes.create_string_buffer(code)
    attached = struct.pack("HP", len(_INSTRUCTIONS), ctypes.addressof(program))
    try:
        if admit:
            listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        else:
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, attached)
    except OSError:  # there is no filter, or this kernel has none
        logger.debug("Newcomers cannot be told from others")


async def _while(condition: Callable[[], bool], *, seconds: float) -> None:
    """Let the event loop go on as long as something holds, and no longer than some seconds."""
    until = asyncio.get_running_loop().time() + seconds
    while condition() and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.005)

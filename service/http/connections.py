"""Connections: what a sender may do before its request is read, and how a server stops.

uvicorn waits for ever for the end of a request's headers, and answers what it cannot read with
plain text. A stopping worker closes its listening socket while connections still wait in it, which
their senders see as an error. Both are put right here, on the server that runs in this process.
"""

import asyncio
import errno
import json
import logging
import os
import select
import signal
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

_LAST_CONNECTIONS_S = 1.0
_LAST_REQUESTS_S = 0.25


def running_server() -> uvicorn.Server | None:
    """The uvicorn server of this process: BentoML makes it and tells nobody."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return server if isinstance(server, uvicorn.Server) else None


class GuardedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for headers, which uvicorn lacks, and errors in our shape.

    Without the limit, 500 connections that send a byte now and then are held for ever (slowloris).
    """

    header_timeout_s = 10.0
    _deadline: asyncio.TimerHandle | None = None

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
        self._refuse(400, "malformed_http", "This is not a request in HTTP/1.1 or 1.0.")

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

    On SIGTERM `on_begin` is called, and `/readyz` says so for `delay_s`; then every connection
    that waits is accepted, the socket is closed for all workers, and uvicorn finishes what is in
    flight.

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
        until = asyncio.get_running_loop().time() + _LAST_CONNECTIONS_S
        while self._has_pending() and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0)  # the loop accepts them
        self._close()
        await asyncio.sleep(_LAST_REQUESTS_S)  # uvicorn closes connections without a request
        self._server.handle_exit(signal.SIGTERM, None)

    def _listeners(self) -> list[Any]:
        return [sock for server in self._server.servers for sock in server.sockets]

    def _has_pending(self) -> bool:
        listeners = [sock.fileno() for sock in self._listeners()]
        return bool(listeners and select.select(listeners, [], [], 0)[0])

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
                    sock.listen(self._server.config.backlog)

"""A server under watch: what one request costs it, and how long the others wait meanwhile."""

import multiprocessing
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from benchmarks.support.nasty import Family, ordinary
from benchmarks.support.server import serving
from service.processes import family as processes_of
from service.processes import resident_bytes

_SETTINGS = {"ASSAY_ROLE": "predict", "ASSAY_RUNTIME": "onnx-cpu"}
PROBE_S = 0.02
_LOOK_S, _IDLE_S, _LEAVE_S = 0.05, 3.0, 0.3
_QUIET_LOOKS, _QUIET_S = 7, 0.03  # so many looks that together see no more CPU seconds
_WAITS = 3  # a request may last so many times as long as it may compute
_ORDINARY = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one request did.

    Attributes:
        size: in the unit of its family.
        sent: bytes.
        pixels: that it announced.
        status: of the answer; 0 without one.
        answer: bytes of it.
        cpu: seconds of all processes until the answer, or until the sender left, beyond what an
            ordinary request takes if this one succeeded.
        after: seconds from then on, until the server was quiet.
        waits: seconds that `/livez` took or would have taken, every `PROBE_S`.
        memory: MiB by which the server grew at most.
        ended: whether the server was killed because it took too long.
    """

    size: int
    sent: int
    pixels: int
    status: int
    answer: int
    cpu: float
    after: float
    waits: list[float]
    memory: float
    ended: bool

    @property
    def allowed(self) -> float:
        """CPU seconds that it may take."""
        return min(2.0, 0.02 + self.sent / 1e6 + self.pixels / 25e6)


def as_due(waits: Iterable[float], every: float = PROBE_S) -> list[float]:
    """The waits of requests due at a steady rate, of which only one at a time was sent."""
    return [wait - passed * every for wait in waits for passed in range(1 + int(wait / every))]


class Server:
    """The server of a tree with the demo models, started again when it had to be killed.

    Attributes:
        idle: seconds that `/livez` took while there was nothing else to do.
    """

    def __init__(self, tree: Path) -> None:
        self._tree, self._stack = tree, ExitStack()
        self.idle: list[float] = []

    def __enter__(self) -> "Server":
        """Start it, and see what it does with nothing to do."""
        self._pid, self._address = self._stack.enter_context(serving(_SETTINGS, tree=self._tree))
        self.probe = self._stack.enter_context(_Probe(self._address))
        self.per_probe, self._usual = 0.0, {}
        self._usual = {route: self._cost(sent) for route, sent in ordinary().items()}
        begin, _ = self.cpu(), self.probe.take()
        time.sleep(_IDLE_S)
        waits = self.probe.take()
        self.idle += waits
        # Whatever the server does for itself meanwhile is counted with them.
        self.per_probe = (self.cpu() - begin) / len(waits)
        self._fresh = self.memory()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self._stack.close()

    def cpu(self) -> float:
        """CPU seconds of all processes, and of those that they have waited for."""
        total = 0.0
        for process in processes_of(self._pid):
            with suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:4])
        return total

    def memory(self) -> int:
        """Bytes that all processes hold (RSS)."""
        return resident_bytes(processes_of(self._pid))

    def memory_left(self, seconds: float, aim: float) -> float:
        """Memory over that after the start, as soon as it is at the aim, or after some seconds."""
        until = time.monotonic() + seconds
        while (ratio := self.memory() / self._fresh) > aim and time.monotonic() < until:
            time.sleep(1)
        return ratio

    def measure(self, family: Family, size: int, limit: float) -> Case:
        """Send a request and wait until the server is quiet again.

        Args:
            family: what to send.
            size: of it.
            limit: CPU seconds after which the server is killed, and another one started.
        """
        sent = family.request(size)
        watch, exchange = _Watch(self, limit), _Exchange(self._address, sent, family.kind.leaves)
        exchange.start()
        in_time = watch.until(lambda: not exchange.is_alive())
        cpu = watch.cpu
        in_time = in_time and watch.until(watch.quiet)
        case = Case(
            size=size,
            sent=len(sent),
            pixels=size if family.kind.unit == "pixels" else family.kind.pixels,
            status=exchange.status,
            answer=exchange.size,
            cpu=max(0.0, cpu - self._usual.get(family.place.route, 0) * (exchange.status == 200)),
            after=max(0.0, watch.cpu - cpu),
            waits=as_due(watch.waits + self.probe.waiting()),
            memory=(watch.peak - watch.memory) / 2**20,
            ended=not in_time,
        )
        self._clean_up(exchange, kill=not in_time)
        return case

    def _clean_up(self, exchange: "_Exchange", *, kill: bool) -> None:
        if kill:
            for process in processes_of(self._pid):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            exchange.join()
            self.__exit__()
            self.__enter__()
        elif exchange.location:
            for _ in range(2):  # cancels, then deletes
                httpx.delete(f"{self._address}{exchange.location}", timeout=60)

    def _cost(self, sent: bytes) -> float:
        """CPU seconds of an ordinary request, when it is not the first."""
        _Exchange(self._address, sent, None).run()
        begin = self.cpu()
        for _ in range(_ORDINARY):
            exchange = _Exchange(self._address, sent, None)
            exchange.run()
            if exchange.status != 200:
                raise RuntimeError(f"an ordinary request is answered with {exchange.status}")
        return (self.cpu() - begin) / _ORDINARY


class _Watch:
    """What a server does from now on."""

    def __init__(self, server: Server, limit: float) -> None:
        self._server, self._limit = server, limit
        server.probe.take()
        self._cpu, self._time = server.cpu(), time.monotonic()
        self.memory = self.peak = server.memory()
        self.cpu, self.waits = 0.0, list[float]()
        self._recent: deque[float] = deque(maxlen=_QUIET_LOOKS)

    def until(self, done: Callable[[], bool]) -> bool:
        """Look on until something holds; False when it took too long."""
        self._recent.clear()
        while not done():
            time.sleep(_LOOK_S)
            self._look()
            lasted = time.monotonic() - self._time
            if self.cpu > self._limit or lasted > _WAITS * self._limit:
                return False
        self._look()
        return True

    def quiet(self) -> bool:
        """Whether the last looks saw next to nothing."""
        recent = self._recent
        return len(recent) == _QUIET_LOOKS and recent[-1] - recent[0] < _QUIET_S

    def _look(self) -> None:
        self.waits += self._server.probe.take()
        probes = self._server.per_probe * len(self.waits)
        self.cpu = self._server.cpu() - self._cpu - probes
        self._recent.append(self.cpu)
        self.peak = max(self.peak, self._server.memory())


class _Exchange(threading.Thread):
    """Sends a request and reads its answer to the end, or leaves; see `Kind.leaves`."""

    def __init__(self, address: str, sent: bytes, leaves: float | None) -> None:
        super().__init__(daemon=True)
        self._url, self._sent, self._leaves = urlsplit(address), sent, leaves
        self.status, self.size, self.location = 0, 0, ""

    def run(self) -> None:
        """Do it; a connection that breaks is the end of the answer."""
        head, share = b"", 1.0 if self._leaves is None else self._leaves
        address = self._url.hostname or "", self._url.port or 80
        with suppress(OSError), socket.create_connection(address) as connection:
            with suppress(OSError):  # refused before it is sent
                connection.sendall(self._sent[: int(share * len(self._sent))])
            if self._leaves is not None:
                time.sleep(_LEAVE_S)
                return
            while part := connection.recv(2**20):
                self.size += len(part)
                head = (head + part)[:4096] if len(head) < 4096 else head
        if head:
            self.status = int(head[9:12])
        found = head.lower().partition(b"\r\nlocation: ")[2]
        self.location = found.partition(b"\r\n")[0].decode()


class _Probe:
    """Asks for `/livez` from a process of its own, again and again."""

    def __init__(self, address: str) -> None:
        self._results, theirs = multiprocessing.Pipe(duplex=False)
        url, context = urlsplit(address), multiprocessing.get_context("spawn")
        told = (url.hostname, url.port, theirs)
        self._process = context.Process(target=_ask, args=told, daemon=True)

    def __enter__(self) -> "_Probe":
        """Start it, and wait for the first answer."""
        self._process.start()
        self._last, _ = self._results.recv()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.kill()
        self._process.join()

    def take(self) -> list[float]:
        """Seconds of each request that was answered since the last call."""
        waits = []
        while self._results.poll():
            self._last, wait = self._results.recv()
            waits.append(wait)
        return waits

    def waiting(self) -> list[float]:
        """How long the present request has waited, if that is long."""
        wait = time.monotonic() - self._last - PROBE_S
        return [wait] if wait > PROBE_S else []


def _ask(host: str, port: int, results: Connection) -> None:
    """Send the moment of each answer, and how long it took."""
    connection = HTTPConnection(host, port)
    while True:
        begin = time.monotonic()
        with suppress(OSError, HTTPException):
            connection.request("GET", "/livez")
            connection.getresponse().read()
        answered = time.monotonic()
        results.send((answered, answered - begin))
        time.sleep(max(0.0, begin + PROBE_S - answered))

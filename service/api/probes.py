"""`/livez`, `/readyz` and `/metrics`: what machines ask of the service."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from anyio import CapacityLimiter, to_thread
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from service.http.errors import ApiError
from service.http.openapi import describe
from service.jobs.queue import JobStore
from service.metrics import Metrics, memory_of, state_metrics

logger = logging.getLogger(__name__)

_TIMEOUT_S = 3.0
Check = Callable[[], Awaitable[bool]]


class Probes:
    """The routes.

    Args:
        checks: by name; the service is ready when all of them are true.
        store: the table of evaluations.
        metrics: of this worker.
        evaluator: whether evaluations are run, one of `checks` or None.
        server: process id of the server.
    """

    def __init__(
        self,
        checks: Mapping[str, Check],
        *,
        store: JobStore,
        metrics: Metrics,
        evaluator: Check | None,
        server: int,
    ) -> None:
        self._checks = checks
        self._store = store
        self._metrics = metrics
        self._evaluator = evaluator
        self._server = server
        self._reader = CapacityLimiter(1)  # of the table: one that hangs is asked once
        self.draining = False

    def routes(self) -> list[Route]:
        """The three of them."""
        return [
            Route("/livez", self.livez),
            Route("/readyz", self.readyz),
            Route("/metrics", self.metrics),
        ]

    @describe(answer=dict[str, str])
    async def livez(self, _: Request) -> Response:
        """Whether the service runs."""
        return JSONResponse({"status": "alive"})

    @describe(answer=dict[str, str], errors=(503,))
    async def readyz(self, _: Request) -> Response:
        """Whether the service answers: models are open and warm, and it is not stopping."""
        if self.draining:
            raise _not_ready("The service is about to stop.", ["draining"])
        checks = {**self._checks, "database": self._database}
        answers = await asyncio.gather(*(_in_time(check()) for check in checks.values()))
        if failing := [name for name, fine in zip(checks, answers, strict=True) if not fine]:
            message = f"The service is not ready: {', '.join(failing)}."
            raise _not_ready(message, failing)
        return JSONResponse({"status": "ready"})

    @describe(answer=str, media_type="text/plain", errors=(503,))
    async def metrics(self, _: Request) -> Response:
        """Figures for Prometheus."""
        alive = None if self._evaluator is None else await _in_time(self._evaluator())
        content = await to_thread.run_sync(self._exposition, alive)
        return Response(content, headers={"content-type": CONTENT_TYPE_LATEST})

    def _exposition(self, evaluator_alive: bool | None) -> bytes:
        state = state_metrics(
            evaluations=self._store.counts(),
            model_evaluations=self._store.totals(),
            evaluator_alive=evaluator_alive,
            memory=memory_of(self._server),
        )
        return self._metrics.exposition(state)

    async def _database(self) -> bool:
        try:
            await to_thread.run_sync(
                self._store.waiting, limiter=self._reader, abandon_on_cancel=True
            )
        except Exception:  # whatever the driver raises
            logger.exception("The table of evaluations does not answer")
            return False
        return True


def _not_ready(message: str, failing: list[str]) -> ApiError:
    details = {"failing": failing}
    return ApiError(503, "unavailable", message, details, {"retry-after": "1"})


async def _in_time(answer: Awaitable[bool]) -> bool:
    try:
        return await asyncio.wait_for(answer, _TIMEOUT_S)
    except TimeoutError:
        return False


def asks(url: str | None) -> Check:
    """A check that asks the readiness of a service of this server.

    Args:
        url: as BentoML gives it: ``file:///socket`` or ``http://host:port``; None, where nothing
            else was started, is always true.
    """

    async def check() -> bool:
        """Whether it answers that it is ready."""
        if url is None:
            return True
        try:
            reader, writer = await _connect(url)
        except OSError:
            return False
        try:
            # By hand: BentoML's client closes its connections under requests of others.
            writer.write(b"GET /readyz HTTP/1.0\r\nHost: assay\r\n\r\n")
            return b" 200 " in await reader.readline()
        except OSError:
            return False
        finally:
            writer.close()

    return check


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts: Any = urlsplit(url)
    if parts.scheme in ("file", "unix"):
        return await asyncio.open_unix_connection(parts.path)
    return await asyncio.open_connection(parts.hostname, parts.port)

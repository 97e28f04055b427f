"""What belongs to no model: health, metrics, the API's description, and the files of the page."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastapi_offline
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.routing import BaseRoute

from service.http.auth import access
from service.http.openapi import failures, file
from service.http.refusal import ApiError
from service.jobs.queue import JobStore
from service.metrics import Metrics, memory_of, state_metrics

logger = logging.getLogger(__name__)

_PAGE = Path(__file__).parents[1] / "page"
# fastapi-offline holds the files of Swagger UI; nothing else of it is used.
_VIEWER = Path(fastapi_offline.__file__).parent / "static"
_SWAGGER_UI = ("swagger-ui-bundle.js", "swagger-ui.css")
_TIMEOUT_S = 3.0
Check = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, kw_only=True)
class Probes:
    """What machines ask of the service.

    Attributes:
        checks: by name; the service is ready when all of them are true.
        store: the table of evaluations.
        figures: of this worker.
        evaluator: whether evaluations are run, one of `checks`.
        server: process id.
    """

    checks: Mapping[str, Check]
    store: JobStore
    figures: Metrics
    evaluator: Check | None
    server: int
    # Of the table: one that hangs is asked once.
    _reader: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))

    def routes(self, *, open_metrics: bool) -> list[BaseRoute]:
        """`/livez`, `/readyz` and `/metrics`, which may be open to those without a key."""
        router = APIRouter()
        add = router.add_api_route
        answer = {"response_model": dict[str, str], "responses": failures(503)}
        add("/livez", self.livez, response_model=dict[str, str], responses=failures())
        add("/readyz", self.readyz, **answer)
        key = [] if open_metrics else access("admin", strict=False)
        options = file("text/plain", 503)
        add("/metrics", self.metrics, dependencies=key, response_class=Response, **options)
        return router.routes

    async def livez(self) -> Response:
        """Whether the service runs."""
        return JSONResponse({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        """Whether the service answers: models are open and warm, and it is not stopping."""
        if request.app.state.leaving:
            raise _not_ready("The service is about to stop.", ["draining"])
        checks = {**self.checks, "database": self._database}
        answers = await asyncio.gather(*(_in_time(check()) for check in checks.values()))
        if failing := [name for name, fine in zip(checks, answers, strict=True) if not fine]:
            message = f"The service is not ready: {', '.join(failing)}."
            raise _not_ready(message, failing)
        return JSONResponse({"status": "ready"})

    async def metrics(self) -> Response:
        """Figures for Prometheus."""
        alive = None if self.evaluator is None else await _in_time(self.evaluator())
        content = await to_thread.run_sync(self._exposition, alive)
        return Response(content, headers={"content-type": CONTENT_TYPE_LATEST})

    def _exposition(self, evaluator_alive: bool | None) -> bytes:
        state = state_metrics(
            evaluations=self.store.counts(),
            model_evaluations=self.store.totals(),
            evaluator_alive=evaluator_alive,
            memory=memory_of(self.server),
        )
        return self.figures.exposition(state)

    async def _database(self) -> bool:
        try:
            await to_thread.run_sync(
                self.store.waiting, limiter=self._reader, abandon_on_cancel=True
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


def schema_routes(schema: Mapping[str, Any]) -> list[BaseRoute]:
    """`/schema.json`: what BentoML's clients read first."""
    router = APIRouter()

    @router.get("/schema.json", response_model=dict[str, Any], responses=failures())
    async def schema_json() -> Response:
        """The two prediction routes, as BentoML's clients want to know them."""
        return JSONResponse(schema)

    return router.routes


def page_routes(document: Mapping[str, Any], folder: Path = _PAGE) -> list[BaseRoute]:
    """`/docs.json`, a route for each file of the page, `/` for its index, `/docs` for a viewer."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs.json")
    async def docs_json() -> Response:
        """The OpenAPI document."""
        return JSONResponse(document)

    def add(address: str, path: Path) -> None:
        """The route of one file."""

        async def page_file() -> Response:
            """The file; the browser asks each time whether it has changed."""
            return FileResponse(path, headers={"cache-control": "no-cache"})

        router.add_api_route(address, page_file)

    add("/", folder / "index.html")
    add("/docs", folder / "docs.html")
    for path in sorted([*folder.iterdir(), *(_VIEWER / name for name in _SWAGGER_UI)]):
        if path.is_file():
            add(f"/{path.name}", path)
    return router.routes

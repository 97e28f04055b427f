"""The application that answers every request: its layers, and how BentoML hands over to it."""

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from service.http.errors import HANDLERS, ApiError, error_response, foreign_error
from service.http.keys import Keys
from service.http.logging import Outcome, log_request, route_of
from service.http.openapi import API_VERSION
from service.http.origins import Origins
from service.http.rates import Rates
from service.metrics import Metrics
from service.tracing import request_span

logger = logging.getLogger(__name__)


def create_app(
    routes: Iterable[BaseRoute],
    *,
    keys: Keys | None = None,
    rates: Rates | None = None,
    metrics: Metrics | None = None,
    hosts: Sequence[str] = ("*",),
) -> FastAPI:
    """An application of some routes.

    Args:
        routes: all of them; HEAD is answered wherever GET is.
        keys: None lets everybody do everything.
        rates: counts the requests of `keys`.
        metrics: where requests are counted.
        hosts: see `Origins`.
    """
    app = FastAPI(
        title="Assay",
        version=API_VERSION,
        openapi_url=None,
        redirect_slashes=False,
        exception_handlers=HANDLERS,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # see `service.tracing`
    )
    app.state.keys, app.state.rates, app.state.leaving = keys, rates, False
    app.router.routes[:] = routes
    for route in list(app.routes):
        if isinstance(route, Route) and "GET" in (route.methods or ()):
            app.router.routes.append(_head_of(route))
    app.add_middleware(Origins, hosts=hosts)
    app.add_middleware(Exchange, metrics=metrics)  # around the former
    return app


def _head_of(route: Any) -> BaseRoute:
    """The same route for HEAD, which FastAPI does not add; the document does not show it."""
    options = {"dependencies": route.dependencies, "include_in_schema": False}
    return type(route)(route.path, route.endpoint, methods=["HEAD"], **options)


class Exchange:
    """ASGI middleware around every request: its id, headers, figures and line in the log.

    An exception becomes an answer. The connection ends with the answer when the application's
    state says that it is `leaving`.

    Args:
        app: the application.
        metrics: where requests are counted, if anywhere.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics | None = None) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        outcome = Outcome(scope, send)
        if self._metrics is not None:
            self._metrics.began()
        began = time.perf_counter()
        try:
            with request_span(scope) as answered:
                try:
                    await self._app(scope, receive, outcome.send)
                except Exception:
                    seen = (scope["method"], route_of(scope), outcome.request_id)
                    logger.exception("Exception on %s %s, request %s", *seen)
                    if outcome.started:
                        raise
                    response = error_response(foreign_error(500), Request(scope))
                    await response(scope, receive, outcome.send)
                answered(route_of(scope), outcome.status)
        finally:
            seconds = time.perf_counter() - began
            if self._metrics is not None:
                seen = {"route": route_of(scope), "method": scope["method"]}
                self._metrics.answered(**seen, status=outcome.status, seconds=seconds)
            log_request(outcome, seconds)


class Gateway:
    """What BentoML mounts: the application, once a worker has opened it."""

    def __init__(self) -> None:
        self.app: ASGIApp = _starting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        await self.app(scope, receive, send)


class Handover:
    """ASGI middleware of BentoML: the gateway answers every request, also of BentoML's own routes.

    BentoML's routes come before mounted applications, ask for no key, and fetch URLs that they
    find in file fields.
    """

    def __init__(self, app: ASGIApp, *, gateway: Gateway) -> None:
        self._bentoml = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] == "http":
            await self._gateway.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            await self._bentoml(scope, receive, send)


async def _starting(scope: Scope, receive: Receive, send: Send) -> None:
    """What a worker answers that has not started."""
    message, headers = "The service is starting.", {"retry-after": "1"}
    error = ApiError(503, "unavailable", message, headers=headers)
    await error_response(error, Request(scope))(scope, receive, send)

"""The application that answers every request: its layers, and how BentoML hands over to it."""

import logging
from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.auth import Rates
from service.http.errors import HANDLERS, ApiError, error_response, foreign_error
from service.http.keys import Keys
from service.http.logging import RequestLog, route_of
from service.http.openapi import API_VERSION
from service.metrics import Metrics

logger = logging.getLogger(__name__)

# Everything comes from here, nothing inline: a hostile label or file name cannot run.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_SECURITY_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def create_app(
    routes: Iterable[BaseRoute],
    *,
    keys: Keys | None = None,
    rates: Rates | None = None,
    metrics: Metrics | None = None,
) -> FastAPI:
    """An application of some routes.

    Args:
        routes: all of them; HEAD is answered wherever GET is.
        keys: None lets everybody do everything.
        rates: counts the requests of `keys`.
        metrics: where requests are counted.
    """
    app = FastAPI(
        title="Assay",
        version=API_VERSION,
        openapi_url=None,
        redirect_slashes=False,
        exception_handlers=HANDLERS,
    )
    app.state.keys, app.state.rates, app.state.leaving = keys, rates, False
    app.router.routes[:] = routes
    for route in list(app.routes):
        if isinstance(route, Route) and "GET" in (route.methods or ()):
            app.router.routes.append(_head_of(route))
    app.add_middleware(Answers)
    app.add_middleware(RequestLog, metrics=metrics)
    return app


def _head_of(route: Any) -> BaseRoute:
    """The same route for HEAD, which FastAPI does not add; the document does not show it."""
    options = {"dependencies": route.dependencies, "include_in_schema": False}
    return type(route)(route.path, route.endpoint, methods=["HEAD"], **options)


class Answers:
    """ASGI middleware: adds headers to every answer, and makes an answer of every exception.

    The connection ends with the answer when the application's state says that it is `leaving`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def with_headers(message: Message) -> None:
            """`send`, with the headers added to the first message."""
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if scope["app"].state.leaving:
                    headers["connection"] = "close"
            await send(message)

        try:
            await self._app(scope, receive, with_headers)
        except Exception:
            state = scope.get("state", {})
            seen = (scope["method"], route_of(scope), state.get("request_id"))
            logger.exception("Exception on %s %s, request %s", *seen)
            if started:
                raise
            response = error_response(foreign_error(500), Request(scope))
            await response(scope, receive, with_headers)


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

"""The way every request takes: log, security headers, error shape, route, key, limits, answer.

BentoML's own reading of forms is not safe (see `service.http.forms`), its errors have other shapes
and its routes no keys. So this middleware answers every request itself; BentoML starts and stops
the service, and its clients find `/schema.json`.
"""

import json
from collections.abc import Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.v2.errors import PlainErrors
from service.http.access import Gate
from service.http.errors import ApiError, ErrorShape, foreign_error, handle_api_error
from service.http.keys import Keys
from service.http.limits import BodyLimit, SecurityHeaders
from service.http.logging import RequestLog
from service.http.rates import Rates
from service.metrics import Metrics
from service.settings import Settings


class Site:
    """Everything that is answered over HTTP; `open` gives it its routes.

    Attributes:
        draining: whether the server is about to stop; connections are not kept then.
    """

    def __init__(self) -> None:
        self._answer: ASGIApp = _closed
        self._app = Starlette()
        self.draining = False

    def open(
        self,
        routes: Iterable[BaseRoute],
        settings: Settings,
        *,
        keys: Keys | None = None,
        rates: Rates | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """Answer requests from now on.

        Args:
            routes: all of them.
            settings: limits.
            keys: None lets everybody do everything.
            rates: counts the requests of `keys`.
            metrics: where requests are counted.
        """
        self.draining = False
        self._app = Starlette(routes=list(routes), exception_handlers={ApiError: handle_api_error})
        limited = BodyLimit(self._app, settings.max_body_bytes, timeout_s=settings.upload_timeout_s)
        gate = Gate(limited, keys=keys, rates=rates, open_metrics=settings.open_metrics)
        finder = RouteFinder(gate, self._app.routes)
        self._answer = RequestLog(SecurityHeaders(PlainErrors(ErrorShape(finder))), metrics)

    def leave(self) -> None:
        """Keep no connection open, and end answers that would go on for ever."""
        self.draining = True
        self._app.state.leaving = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def without_keeping(message: Message) -> None:
            """`send`, and the connection ends with this answer."""
            if message["type"] == "http.response.start" and self.draining:
                MutableHeaders(raw=message["headers"])["connection"] = "close"
            await send(message)

        await self._answer(scope, receive, without_keeping)


class Front:
    """ASGI middleware around BentoML's application: the site answers, BentoML lives and dies."""

    def __init__(self, app: ASGIApp, *, site: Site) -> None:
        self._bentoml = app
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] == "http":
            await self._site(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            await self._bentoml(scope, receive, send)


class RouteFinder:
    """Finds the route of a request before anything else looks at it.

    Answers OPTIONS with the methods of an address, and refuses addresses and methods that are not
    there, so that a wrong address is never a question of keys.
    """

    def __init__(self, app: ASGIApp, routes: list[BaseRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exact = next((r for r in self._routes if r.matches(scope)[0] is Match.FULL), None)
        if exact is not None and scope["method"] in _methods(exact):
            scope["state"]["route"] = _template(exact)
            await self._app(scope, receive, send)
            return
        known = [route for route in self._routes if route.matches(scope)[0] is not Match.NONE]
        if not known:
            raise foreign_error(404)
        scope["state"]["route"] = _template(exact or known[0])
        allowed = ", ".join(sorted({m for route in known for m in _methods(route)} | {"OPTIONS"}))
        if scope["method"] == "OPTIONS":
            await Response(status_code=204, headers={"allow": allowed})(scope, receive, send)
        else:
            raise foreign_error(405, {"allow": allowed})


def _template(route: BaseRoute) -> str:
    return route.path if isinstance(route, Route | Mount) else "unmatched"


def _methods(route: BaseRoute) -> set[str]:
    """What a route answers; mounted folders of files can be read only."""
    return set(getattr(route, "methods", None) or {"GET", "HEAD"})


async def _closed(scope: Scope, receive: Receive, send: Send) -> None:
    """What a service answers that has not started."""
    error = {"code": "unavailable", "message": "The service is starting.", "details": None}
    answer: Any = Response(
        json.dumps({"error": error}),
        status_code=503,
        media_type="application/json",
        headers={"retry-after": "1"},
    )
    await answer(scope, receive, send)

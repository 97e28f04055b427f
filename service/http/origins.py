"""Which pages may use the service: none of other sites, through the browser of their visitor."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.errors import ApiError, error_response
from service.http.logging import PROBES

_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})  # RFC 9110, 9.2.1
_PORTS = {"http": 80, "https": 443}


class Origins:
    """ASGI middleware that refuses unknown names of the host, and pages of other origins.

    A name of any site may lead a browser to this address (DNS rebinding), whose page then reads
    everything; and any page may send forms and texts to any address without asking first. What is
    no browser sends neither `Sec-Fetch-Site` nor `Origin`, and passes. Probes ask by address, and
    pass too.

    Args:
        app: the application.
        hosts: names, patterns such as ``*.example.com`` and addresses of the service; ``*`` is any.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._any_host = "*" in hosts
        self._check = TrustedHostMiddleware(_say_known, hosts, www_redirect=False)
        self._last_listed: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        refusal = None
        if scope["type"] == "http" and scope["path"] not in PROBES:
            refusal = await self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await error_response(refusal, Request(scope))(scope, receive, send)

    async def _refusal(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._any_host and not await self._is_listed(host):
            message = "The service does not answer to this Host: ASSAY_HOSTS lists its names."
            return ApiError(400, "unknown_host", message)
        if scope["method"] in _SAFE:
            return None
        sites, origins = headers.getlist("sec-fetch-site"), headers.getlist("origin")
        if sites:
            own = set(sites) <= {"same-origin", "none"}
        else:
            own = all([await self._is_own(origin, scope["scheme"], host) for origin in origins])
        if own:
            return None
        message = "Pages of other origins may not do this: ASSAY_HOSTS lists the service's names."
        return ApiError(403, "cross_site", message)

    async def _is_own(self, origin: str, scheme: str, host: str) -> bool:
        """Whether an origin is a page of this service, perhaps behind a proxy that ends TLS."""
        try:
            here, there = urlsplit(f"{scheme}://{host}"), urlsplit(origin)
            place = there.scheme, there.port or _PORTS[there.scheme]
            places = {(scheme, here.port or _PORTS[scheme]), ("https", _PORTS["https"])}
        except (ValueError, KeyError):  # "null" among others
            return False
        named = there.hostname == here.hostname
        named = named or not self._any_host and await self._is_listed(there.netloc)
        return named and place in places

    async def _is_listed(self, host: str) -> bool:
        """Whether a host, with or without a port, is one of the service's."""
        if host == self._last_listed:
            return True
        said: list[Any] = []

        async def hear(message: Message) -> None:
            """Keep what is answered."""
            said.append(message)

        asked = {"type": "http", "headers": [(b"host", host.encode("latin-1"))]}
        await self._check(asked, _hear_nothing, hear)
        if listed := said == [_KNOWN]:
            self._last_listed = host
        return listed


# What stands behind Starlette's middleware, which otherwise answers in plain text.
_KNOWN: Message = {"type": "known"}


async def _say_known(scope: Scope, receive: Receive, send: Send) -> None:
    await send(_KNOWN)


async def _hear_nothing() -> Message:
    return {"type": "http.disconnect"}

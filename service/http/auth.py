"""Who may use which route: API keys, their scopes and their rates, as dependencies of routes."""

import fcntl
import math
import os
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fastapi import Request, Security
from fastapi.openapi.models import HTTPBearer
from fastapi.security import SecurityScopes
from fastapi.security.base import SecurityBase

from core.files import allocate
from service.http.errors import ApiError, invalid_query
from service.http.keys import Caller, Keys, Scope

_CHALLENGE = {"www-authenticate": 'Bearer realm="assay"'}
_BUCKET = struct.Struct("<dd")  # tokens that are gone; the moment to which they were counted


def access(scope: Scope | None = None, *, strict: bool = True) -> list[Any]:
    """Dependencies of a route: a key, checked before anything of the body is read.

    Args:
        scope: that the key must have; None takes a key of any scope.
        strict: refuse query parameters that the route does not name.
    """
    return [Security(_RequireKey(strict=strict), scopes=[] if scope is None else [scope])]


class _RequireKey(SecurityBase):
    """Refuses a request that its sender may not make; see `caller_of`.

    The application's state holds `keys` (None lets everybody do everything) and their `rates`.
    """

    def __init__(self, *, strict: bool) -> None:
        self.model = HTTPBearer()
        self.scheme_name = "bearer"
        self._strict = strict

    async def __call__(self, request: Request, needed: SecurityScopes) -> None:
        keys: Keys | None = request.app.state.keys
        if keys is not None:
            self._admit(keys, request, needed)
        if self._strict and request.scope["query_string"]:
            _refuse_unknown_query(request)

    @staticmethod
    def _admit(keys: Keys, request: Request, needed: SecurityScopes) -> None:
        caller = _authenticate(keys, request)
        request.scope["state"]["caller"] = caller
        for scope in needed.scopes:
            if scope not in caller.scopes:
                message = f"This key does not have the scope {scope!r}."
                raise ApiError(403, "missing_scope", message, {"scope": scope})
        request.app.state.rates.take(caller)


def _refuse_unknown_query(request: Request) -> None:
    """Refuse query parameters that would be ignored.

    Raises:
        ApiError: 422 invalid_query.
    """
    own = request.scope["route"].dependant
    known = [field.alias for each in (own, *own.dependencies) for field in each.query_params]
    seen: set[str] = set()
    for name, value in request.query_params.multi_items():
        if name not in known:
            names = f"; known: {', '.join(known)}" if known else ""
            raise invalid_query(f"Query parameter {name[:64]!r} is not known here{names}.")
        if name in seen:
            raise invalid_query(f"Query parameter {name} may be given once.")
        if not value.isprintable():
            raise invalid_query(f"Query parameter {name} must be printable text.")
        seen.add(name)


def _authenticate(keys: Keys, request: Request) -> Caller:
    """The caller of a request.

    Raises:
        ApiError: 401 missing_key, wrong_key.
    """
    given = _given_keys(request)
    if not given:
        message = "This address needs an API key: 'Authorization: Bearer KEY' or 'X-API-Key: KEY'."
        raise ApiError(401, "missing_key", message, headers=_CHALLENGE)
    caller = keys.find(given[0]) if len(set(given)) == 1 else None
    if caller is None:
        raise ApiError(401, "wrong_key", "The API key is not known here.", headers=_CHALLENGE)
    return caller


def _given_keys(request: Request) -> list[bytes]:
    given = []
    for name, value in request.scope["headers"]:
        if name == b"x-api-key":
            given.append(value.strip())
        elif name == b"authorization":
            kind, _, key = value.strip().partition(b" ")
            given.append(key.strip() if kind.lower() == b"bearer" else b"")
    return given


class Rates:
    """A bucket of a minute's requests for every caller that has a limit.

    The buckets lie in one small file, so that several workers together allow what one would.

    Args:
        path: the file; made when missing.
        callers: everybody, in an order that is the same in all workers.
        clock: seconds, the same in all processes of a host.
    """

    def __init__(
        self, path: Path, callers: Iterable[Caller], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        limited = [caller.name for caller in callers if caller.requests_per_minute]
        self._offsets = {name: index * _BUCKET.size for index, name in enumerate(limited)}
        self._clock = clock
        if limited:
            allocate(path, len(limited) * _BUCKET.size)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, caller: Caller) -> None:
        """Count one request.

        Raises:
            ApiError: 429 rate_limited, with the seconds until the next request is allowed.
        """
        limit = caller.requests_per_minute
        if limit is None:
            return
        wait = self._take(self._offsets[caller.name], limit)
        if wait > 0:
            message = f"This key allows {limit} requests per minute."
            headers = {"retry-after": str(math.ceil(wait))}
            raise ApiError(429, "rate_limited", message, {"limit": limit}, headers)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _take(self, offset: int, limit: int) -> float:
        """Seconds to wait; 0 when the request was counted."""
        per_second = limit / 60
        fcntl.lockf(self._file, fcntl.LOCK_EX, _BUCKET.size, offset)
        try:
            now = self._clock()
            stored = os.pread(self._file, _BUCKET.size, offset)
            gone, counted = _BUCKET.unpack(stored.ljust(_BUCKET.size, b"\0"))
            # A file of an earlier boot may hold a moment that has not come yet.
            elapsed = max(0.0, now - counted)
            gone = min(limit, max(0.0, gone - elapsed * per_second))
            if gone + 1 > limit:
                return (gone + 1 - limit) / per_second
            os.pwrite(self._file, _BUCKET.pack(gone + 1, now), offset)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, _BUCKET.size, offset)
        return 0.0

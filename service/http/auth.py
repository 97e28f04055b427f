"""Who may use which route: API keys and their scopes, as dependencies of routes."""

from typing import Any

from fastapi import Request, Security
from fastapi.openapi.models import HTTPBearer
from fastapi.security import SecurityScopes
from fastapi.security.base import SecurityBase

from service.http.errors import ApiError, invalid_query
from service.http.keys import Caller, Keys, Scope
from service.http.shares import address_of

_CHALLENGE = {"www-authenticate": 'Bearer realm="assay"'}


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
        ApiError: 401 missing_key, wrong_key; 429 too_many_wrong_keys.
    """
    given = _given_keys(request)
    if not given:
        message = "This address needs an API key: 'Authorization: Bearer KEY' or 'X-API-Key: KEY'."
        raise ApiError(401, "missing_key", message, headers=_CHALLENGE)
    caller = keys.find(given[0]) if len(set(given)) == 1 else None
    request.app.state.rates.take_key(address_of(request), caller)
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

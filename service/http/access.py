"""Who may use which route: API keys, their scopes and their rates, as ASGI middleware."""

import re
from typing import Literal

from starlette.types import ASGIApp, Receive, Scope, Send

from service.http import callers
from service.http.errors import ApiError
from service.http.keys import Keys
from service.http.rates import Rates

Access = callers.Scope | Literal["free", "any"]

# By route, the first that fits; what is not named here is for administrators.
_RULES: tuple[tuple[str, Access], ...] = (
    (r"/(livez|readyz|docs|docs\.json|schema\.json)?", "free"),
    (r"/[a-z-]+\.(html|css|js|svg)", "free"),
    (r"/classify(_text)?", "predict"),
    (r"/v2/repository/.*/(load|unload)", "admin"),
    (r"/v2(/.*)?", "predict"),
    (r"/v1/models(/.*)?", "any"),
    (r"/samples(/.*)?", "any"),
    (r"/v1/evaluations(/.*)?", "evaluate"),
)
_CHALLENGE = {"www-authenticate": 'Bearer realm="assay"'}


def access_of(route: str, *, open_metrics: bool = False) -> Access:
    """What a request to a route needs.

    Args:
        route: its template, such as ``/v1/evaluations/{id}``.
        open_metrics: whether ``/metrics`` needs no key.

    Returns:
        A scope; ``"any"`` for a key with any scope, ``"free"`` for none at all.
    """
    if route == "/metrics" and open_metrics:
        return "free"
    for pattern, access in _RULES:
        if re.fullmatch(pattern, route):
            return access
    return "admin"


class Gate:
    """Refuses a request that its sender may not make, before its body is read.

    The caller is put into the request's state, see `callers.caller_of`.

    Args:
        app: the application; the request's state holds the template of its route as ``route``.
        keys: None lets everybody do everything.
        rates: counts the requests of `keys`.
        open_metrics: whether ``/metrics`` needs no key.
    """

    def __init__(
        self, app: ASGIApp, *, keys: Keys | None, rates: Rates | None, open_metrics: bool
    ) -> None:
        self._app = app
        self._keys = keys
        self._rates = rates
        self._open_metrics = open_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if self._keys is not None:
            self._admit(self._keys, scope)
        await self._app(scope, receive, send)

    def _admit(self, keys: Keys, scope: Scope) -> None:
        needed = access_of(scope["state"]["route"], open_metrics=self._open_metrics)
        if needed == "free":
            return
        caller = _authenticate(keys, scope)
        scope["state"]["caller"] = caller
        if needed != "any" and needed not in caller.scopes:
            message = f"This key does not have the scope {needed!r}."
            raise ApiError(403, "missing_scope", message, {"scope": needed})
        if self._rates is not None:
            self._rates.take(caller)


def _authenticate(keys: Keys, scope: Scope) -> callers.Caller:
    """The caller of a request.

    Raises:
        ApiError: 401 missing_key, wrong_key.
    """
    given = _given_keys(scope)
    if not given:
        message = "This address needs an API key: 'Authorization: Bearer KEY' or 'X-API-Key: KEY'."
        raise ApiError(401, "missing_key", message, headers=_CHALLENGE)
    caller = keys.find(given[0]) if len(set(given)) == 1 else None
    if caller is None:
        raise ApiError(401, "wrong_key", "The API key is not known here.", headers=_CHALLENGE)
    return caller


def _given_keys(scope: Scope) -> list[bytes]:
    given = []
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            given.append(value.strip())
        elif name == b"authorization":
            kind, _, key = value.strip().partition(b" ")
            given.append(key.strip() if kind.lower() == b"bearer" else b"")
    return given

"""Who sends a request, and what they may do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from starlette.requests import HTTPConnection

Scope = Literal["predict", "evaluate", "admin"]
SCOPES: frozenset[Scope] = frozenset(get_args(Scope))


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The owner of an API key.

    Args:
        name: distinguishes callers in logs and evaluations; ``""`` for everybody, keys being off.
        scopes: what may be done.
        requests_per_minute: None is unlimited.
        evaluations_budget: model evaluations of attack work that are accepted within 24 hours;
            None is unlimited.
    """

    name: str
    scopes: frozenset[Scope]
    requests_per_minute: int | None = None
    evaluations_budget: int | None = None

    @property
    def sees(self) -> str | None:
        """The owner whose evaluations are visible; None sees everybody's."""
        return None if not self.name or "admin" in self.scopes else self.name


ANYONE = Caller(name="", scopes=SCOPES)


def caller_of(source: HTTPConnection | Mapping[str, Any]) -> Caller:
    """The caller of a request, or of its ASGI scope; `ANYONE` where no keys are in use."""
    scope = source.scope if isinstance(source, HTTPConnection) else source
    return scope.get("state", {}).get("caller", ANYONE)

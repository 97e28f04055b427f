"""API keys: who holds one, and what it opens.

Only digests of keys are kept in memory, and no message ever holds a part of one.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import HTTPConnection

Scope = Literal["predict", "evaluate", "admin"]
SCOPES: frozenset[Scope] = frozenset(get_args(Scope))

_Limit = Annotated[int, Field(ge=1, le=10**12)]
# What the fields of an entry must be, in the order in which they are looked at.
_RULES = {
    "name": "must have a name of 1 to 64 letters, digits or ._@-",
    "scopes": f"scopes must be a list of some of {', '.join(get_args(Scope))}",
    "requests_per_minute": "requests_per_minute must be a whole number from 1 to 10^12",
    "evaluations_per_day": "evaluations_per_day must be a whole number from 1 to 10^12",
    "key": "key must be 16 to 512 printable ASCII characters without blanks",
    "key_sha256": "key_sha256 must be 64 hexadecimal digits in lower case",
}


class _Entry(BaseModel):
    """One entry of the setting."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._@-]{1,64}$")]
    key: Annotated[str, Field(pattern=r"^[!-~]{16,512}$")] = ""
    key_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = ""
    scopes: Annotated[list[Scope], Field(min_length=1)]
    requests_per_minute: _Limit | None = None
    evaluations_per_day: _Limit | None = None


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


class Keys:
    """Finds the caller of a key.

    Args:
        callers: by the SHA-256 of the key; at least one.
    """

    def __init__(self, callers: Mapping[bytes, Caller]) -> None:
        self._callers = dict(callers)

    @property
    def callers(self) -> list[Caller]:
        """Everybody, in the order of the settings."""
        return list(self._callers.values())

    def find(self, key: bytes) -> Caller | None:
        """The owner of a key; as slow for a wrong key as for a right one."""
        digest = hashlib.sha256(key).digest()
        found = None
        for known, caller in self._callers.items():
            if hmac.compare_digest(known, digest):
                found = caller
        return found


def read_keys(setting: str) -> Keys | None:
    """The keys that ``ASSAY_API_KEYS`` names: a JSON list, or the path of a file with one.

    Returns:
        None when the setting is empty: keys are off.

    Raises:
        ValueError: the file cannot be read, or an entry breaks a rule; the message names the
            entry by its number and name.
    """
    setting = setting.strip()
    if not setting:
        return None
    if setting[0] not in "[{":
        setting = _read_file(setting)
    try:
        entries = json.loads(setting, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("ASSAY_API_KEYS must be JSON, got too many levels") from None
    except json.JSONDecodeError as error:
        # Not the error itself: it carries the whole document.
        where = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"ASSAY_API_KEYS must be JSON, which breaks off at {where}") from None
    return parse_keys(entries)


def parse_keys(entries: object) -> Keys:
    """The keys in a list of entries; see `read_keys`.

    Raises:
        ValueError: an entry breaks a rule.
    """
    if not isinstance(entries, list) or not entries:
        raise ValueError("ASSAY_API_KEYS must be a JSON list of at least one entry")
    callers: dict[bytes, Caller] = {}
    names: set[str] = set()
    for number, value in enumerate(entries):
        entry = _read_entry(f"entry {number}", value)
        digest = bytes.fromhex(entry.key_sha256 or hashlib.sha256(entry.key.encode()).hexdigest())
        if entry.name in names:
            raise ValueError(f"ASSAY_API_KEYS: the name {entry.name!r} is given twice")
        if digest in callers:
            first = callers[digest].name
            raise ValueError(f"ASSAY_API_KEYS: {first!r} and {entry.name!r} have the same key")
        names.add(entry.name)
        callers[digest] = Caller(
            name=entry.name,
            scopes=frozenset(entry.scopes),
            requests_per_minute=entry.requests_per_minute,
            evaluations_budget=entry.evaluations_per_day,
        )
    return Keys(callers)


def _read_file(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ValueError(f"ASSAY_API_KEYS: the file cannot be read: {reason}") from None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("ASSAY_API_KEYS: an entry gives one of its fields twice")
    return dict(pairs)


def _read_entry(where: str, value: object) -> _Entry:
    rule = "must be an object"
    if isinstance(value, dict):
        try:
            entry = _Entry.model_validate(value)
            if bool(entry.key) != bool(entry.key_sha256):
                return entry
            rule = "must have either key or key_sha256"
        except ValidationError as error:  # it may hold keys, and is not shown
            broken = {str(problem["loc"][0]) for problem in error.errors()}
            # Not the names of unknown fields: a key may stand where a name belongs.
            unknown = f"has {len(broken)} unknown fields; known: {', '.join(sorted(_RULES))}"
            rule = next((_RULES[field] for field in _RULES if field in broken), unknown)
        if rule != _RULES["name"]:
            where = f"{where} ({value['name']})"
    raise ValueError(f"ASSAY_API_KEYS: {where} {rule}")

"""API keys: who holds one, and what it opens.

Only digests of keys are kept in memory, and no message ever holds a part of one.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from starlette.requests import HTTPConnection

Scope = Literal["predict", "evaluate", "admin"]
SCOPES: frozenset[Scope] = frozenset(get_args(Scope))

_FIELDS = {"name", "key", "key_sha256", "scopes", "requests_per_minute", "evaluations_per_day"}
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MIN_KEY, _MAX_KEY = 16, 512
_MAX_LIMIT = 10**12


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
    for number, entry in enumerate(entries):
        digest, caller = _read_entry(f"entry {number}", entry)
        if caller.name in names:
            raise ValueError(f"ASSAY_API_KEYS: the name {caller.name!r} is given twice")
        if digest in callers:
            first = callers[digest].name
            raise ValueError(f"ASSAY_API_KEYS: {first!r} and {caller.name!r} have the same key")
        names.add(caller.name)
        callers[digest] = caller
    return Keys(callers)


def _read_file(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ValueError(f"ASSAY_API_KEYS: the file cannot be read: {reason}") from None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError("ASSAY_API_KEYS: an entry gives one of its fields twice")
    return dict(pairs)


def _read_entry(where: str, entry: object) -> tuple[bytes, Caller]:
    if not isinstance(entry, dict):
        raise _broken(where, "must be an object")
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _broken(where, "must have a name of 1 to 64 letters, digits or ._@-")
    where = f"{where} ({name})"
    if unknown := len(set(entry) - _FIELDS):
        # Not their names: a key may stand where a name belongs.
        raise _broken(where, f"has {unknown} unknown fields; known: {', '.join(sorted(_FIELDS))}")
    caller = Caller(
        name=name,
        scopes=_scopes(where, entry.get("scopes")),
        requests_per_minute=_limit(where, entry, "requests_per_minute"),
        evaluations_budget=_limit(where, entry, "evaluations_per_day"),
    )
    return _digest(where, entry), caller


def _digest(where: str, entry: dict[str, Any]) -> bytes:
    if ("key" in entry) == ("key_sha256" in entry):
        raise _broken(where, "must have either key or key_sha256")
    if "key_sha256" in entry:
        digest = entry["key_sha256"]
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise _broken(where, "key_sha256 must be 64 hexadecimal digits in lower case")
        return bytes.fromhex(digest)
    key = entry["key"]
    rule = f"key must be {_MIN_KEY} to {_MAX_KEY} printable ASCII characters without blanks"
    if not isinstance(key, str) or not _MIN_KEY <= len(key) <= _MAX_KEY:
        raise _broken(where, rule)
    if not all("!" <= character <= "~" for character in key):
        raise _broken(where, rule)
    return hashlib.sha256(key.encode()).digest()


def _scopes(where: str, value: object) -> frozenset[Scope]:
    known = get_args(Scope)
    if not isinstance(value, list) or not value or any(scope not in known for scope in value):
        raise _broken(where, f"scopes must be a list of some of {', '.join(known)}")
    return frozenset(value)


def _limit(where: str, entry: dict[str, Any], field: str) -> int | None:
    value = entry.get(field)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_LIMIT:
        raise _broken(where, f"{field} must be a whole number from 1 to 10^12")
    return value


def _broken(where: str, rule: str) -> ValueError:
    return ValueError(f"ASSAY_API_KEYS: {where} {rule}")

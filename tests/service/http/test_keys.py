import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from service.http.keys import Caller, read_keys

SECRET = "correct-horse-battery-staple"
OTHER = "another-key-of-some-length"


def entry(**changes: Any) -> dict[str, Any]:
    given = {"name": "alice", "key": SECRET, "scopes": ["predict"], **changes}
    return {name: value for name, value in given.items() if value is not None}


def test_a_key_finds_its_caller_and_no_other_does() -> None:
    digest = hashlib.sha256(OTHER.encode()).hexdigest()
    limits = {"requests_per_minute": 5, "evaluations_per_day": 1000}
    bob = entry(name="bob", key=None, key_sha256=digest, scopes=["evaluate", "admin"], **limits)
    found = read_keys(json.dumps([entry(), bob]))
    assert found is not None
    alice = Caller(name="alice", scopes=frozenset({"predict"}))
    assert found.find(SECRET.encode()) == alice
    assert found.find(OTHER.encode()) == Caller(
        name="bob",
        scopes=frozenset({"evaluate", "admin"}),
        requests_per_minute=5,
        evaluations_budget=1000,
    )
    assert [caller.name for caller in found.callers] == ["alice", "bob"]
    for wrong in (b"", SECRET[:-1].encode(), SECRET.upper().encode(), digest.encode(), b"\xff"):
        assert found.find(wrong) is None


def test_keys_come_from_a_file_and_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps([entry()]))
    found = read_keys(str(path))
    assert found is not None and found.find(SECRET.encode())
    assert SECRET not in repr(vars(found))
    assert read_keys("") is None and read_keys("  ") is None
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="the file cannot be read: it is not UTF-8 text"):
        read_keys(str(path))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "must be a JSON list of at least one entry"),
        ({"name": "alice"}, "must be a JSON list"),
        (["alice"], "entry 0 must be an object"),
        ([entry(name=None)], "entry 0 must have a name"),
        ([entry(name="<b>")], "entry 0 must have a name of 1 to 64 letters"),
        ([entry(key=None)], r"entry 0 \(alice\) must have either key or key_sha256"),
        ([entry(key_sha256="0" * 64)], "must have either key or key_sha256"),
        ([entry(key="short")], r"\(alice\) key must be 16 to 512 printable ASCII"),
        ([entry(key=SECRET + " ")], "key must be 16 to 512 printable ASCII"),
        ([entry(key=None, key_sha256=SECRET)], "key_sha256 must be 64 hexadecimal digits"),
        ([entry(scopes=[])], "scopes must be a list of some of predict, evaluate, admin"),
        ([entry(scopes=["root"])], "scopes must be a list"),
        ([entry(requests_per_minute=0)], "requests_per_minute must be a whole number from 1"),
        ([entry(requests_per_minute=True)], "requests_per_minute must be a whole number"),
        ([entry(evaluations_per_day=1.5)], "evaluations_per_day must be a whole number"),
        ([entry(**{SECRET: 1})], r"\(alice\) has 1 unknown fields; known: evaluations_per_day"),
        ([entry(), entry(key=OTHER)], "the name 'alice' is given twice"),
        ([entry(), entry(name="bob")], "'alice' and 'bob' have the same key"),
        (f'[{{"key": "{SECRET}",', "must be JSON, which breaks off at line 1, column "),
        (f'[{{"key": "{SECRET}", "key": "{OTHER}"}}]', "gives one of its fields twice"),
        ("[" * 100_000, "must be JSON"),
        ("/nowhere/keys.json", "the file cannot be read: No such file or directory"),
    ],
)
def test_an_entry_that_breaks_a_rule_is_named_without_its_key(entries: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        read_keys(entries if isinstance(entries, str) else json.dumps(entries))
    error = refused.value
    assert SECRET not in str(error) and OTHER not in str(error)
    assert error.__cause__ is None and error.__suppress_context__ or error.__context__ is None

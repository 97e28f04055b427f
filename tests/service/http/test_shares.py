"""Who shares what is limited, and how much one may take."""

import pytest
from starlette.requests import Request

from service.http.keys import SCOPES, Caller
from service.http.shares import Shares, sharer_of


def _taken(shares: Shares, sharer: str) -> int:
    count = 0
    while shares.take(sharer):
        count += 1
    return count


def test_nobody_takes_more_than_is_left_and_the_next_finds_room() -> None:
    shares = Shares(100)
    assert [_taken(shares, sharer) for sharer in "abcdef"] == [50, 25, 13, 6, 3, 2]
    shares.give_back("a", 49)
    assert shares.held("a") == 1 and _taken(shares, "f") == 24
    assert [_taken(Shares(limit), "a") for limit in (1, 2, 3)] == [1, 1, 2]
    assert not Shares(100).take("a", 101) and Shares(100).take("a", 100)


def _request(host: str | None, caller: Caller | None = None) -> Request:
    client = None if host is None else (host, 1)
    state = {} if caller is None else {"caller": caller}
    return Request({"type": "http", "headers": [], "client": client, "state": state})


@pytest.mark.parametrize(
    ("hosts", "sharer"),
    [
        (["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"], "localhost"),
        (["10.1.2.3", "::ffff:10.1.2.3"], "10.1.2.3"),
        (["2001:db8:1:2::1", "2001:db8:1:2:ffff::"], "2001:db8:1:2::/64"),
        ([None, "", "made up", "1" * 9999], "unknown"),
    ],
)
def test_a_host_is_one_sharer_however_it_is_called(hosts: list[str | None], sharer: str) -> None:
    assert {sharer_of(_request(host)) for host in hosts} == {sharer}


def test_a_key_is_one_sharer_wherever_it_is_used() -> None:
    pat = Caller(name="pat", scopes=SCOPES)
    assert {sharer_of(_request(host, pat)) for host in ("10.0.0.1", "10.0.0.2", None)} == {"pat"}

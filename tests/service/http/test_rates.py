import multiprocessing
from pathlib import Path

import pytest

from service.http.auth import Rates
from service.http.errors import ApiError
from service.http.keys import ANYONE, SCOPES, Caller

ALICE = Caller(name="alice", scopes=SCOPES, requests_per_minute=6)
BOB = Caller(name="bob", scopes=SCOPES, requests_per_minute=2)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def refused(rates: Rates, caller: Caller) -> int:
    """Seconds that a refusal tells to wait."""
    with pytest.raises(ApiError) as late:
        rates.take(caller)
    assert (late.value.status, late.value.code) == (429, "rate_limited")
    return int(late.value.headers["retry-after"])


def test_a_minutes_requests_pass_at_once_and_come_back_evenly(tmp_path: Path) -> None:
    clock = Clock()
    rates = Rates(tmp_path / "rates", [ALICE, BOB], clock=clock)
    for _ in range(6):
        rates.take(ALICE)
    assert refused(rates, ALICE) == 10
    clock.now += 9.5
    assert refused(rates, ALICE) == 1
    clock.now += 0.5
    rates.take(ALICE)
    assert refused(rates, ALICE) == 10
    clock.now += 3600
    for _ in range(6):
        rates.take(ALICE)
    refused(rates, ALICE)
    rates.close()


def test_callers_have_their_own_rates_or_none(tmp_path: Path) -> None:
    rates = Rates(tmp_path / "rates", [ALICE, ANYONE, BOB], clock=Clock())
    rates.take(BOB)
    rates.take(BOB)
    refused(rates, BOB)
    rates.take(ALICE)
    for _ in range(100):
        rates.take(ANYONE)
    rates.close()


def test_a_moment_of_an_earlier_boot_does_no_harm(tmp_path: Path) -> None:
    clock = Clock()
    rates = Rates(tmp_path / "rates", [BOB], clock=clock)
    rates.take(BOB)
    clock.now = 1.0
    rates.take(BOB)
    assert refused(rates, BOB) == 30
    rates.close()


def _take(path: Path, results: "multiprocessing.SimpleQueue[int]") -> None:
    caller = Caller(name="alice", scopes=SCOPES, requests_per_minute=50)
    rates = Rates(path, [caller], clock=Clock())
    passed = 0
    for _ in range(40):
        try:
            rates.take(caller)
            passed += 1
        except ApiError:
            pass
    results.put(passed)


def test_several_workers_allow_what_one_would(tmp_path: Path) -> None:
    spawning = multiprocessing.get_context("spawn")
    results = spawning.SimpleQueue()
    workers = [spawning.Process(target=_take, args=(tmp_path / "r", results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert sum(results.get() for _ in workers) == 50

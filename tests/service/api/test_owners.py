"""Whose evaluations are seen, how many are accepted, and in which order they wait."""

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from runtimes.artifact import Artifact
from service.http.keys import ANYONE, Caller
from tests.service.api.test_uploaded_images import leave
from tests.service.front import FGSM, PNG, URL, Front, check_error, pictures

ADA = Caller(name="ada", scopes=frozenset({"evaluate"}))
BOB = Caller(name="bob", scopes=frozenset({"evaluate", "predict"}))
ROOT = Caller(name="root", scopes=frozenset({"admin", "evaluate"}))


@contextmanager
def acting(front: Front, caller: Caller) -> Iterator[None]:
    before, front.caller = front.caller, caller
    yield
    front.caller = before


def send(front: Front, caller: Caller, *, key: str | None = None, **fields: str) -> str:
    with acting(front, caller):
        response = front.post(None, key=key, **fields)
    assert response.status_code == 202, response.text
    return response.headers["location"]


def test_an_evaluation_of_somebody_else_is_as_unknown_as_none(front: Front) -> None:
    location = send(front, ADA)
    paths = ("", "/events", "/report.json", "/samples/0/clean.png", "/samples/0.json")
    with acting(front, BOB):
        for method, path in [*(("GET", path) for path in paths), ("DELETE", "")]:
            hidden = front.request(method, location + path)
            unknown = front.request(method, f"{URL}/{'0' * 32}{path}")
            check_error(hidden, 404, "unknown_evaluation", "no evaluation")
            assert hidden.content == unknown.content and unknown.status_code == 404
    with acting(front, ADA):
        assert front.request("GET", location).json()["status"] == "queued"
        for _ in range(2):
            front.request("DELETE", location)
        check_error(front.request("GET", location), 410, "evaluation_deleted", "")
    with acting(front, BOB):
        check_error(front.request("GET", location), 404, "unknown_evaluation", "")


def test_lists_show_what_the_caller_may_see(front: Front) -> None:
    ids = {caller.name: send(front, caller).removeprefix(f"{URL}/") for caller in (ADA, BOB)}

    def seen(caller: Caller, query: str = "") -> set[str]:
        with acting(front, caller):
            page = front.request("GET", URL + query).json()
        return {evaluation["id"] for evaluation in page["evaluations"]}

    assert seen(ADA) == {ids["ada"]} == seen(ADA, "?owner=ada")
    assert seen(ADA, "?owner=bob") == set()
    assert seen(ROOT) == seen(ANYONE) == set(ids.values())
    assert seen(ROOT, "?owner=bob") == {ids["bob"]}
    assert seen(ROOT, "?model=fashion-dot") == set()
    assert seen(ROOT, "?model=fashion-elliptical&status=queued") == set(ids.values())


def test_idempotency_keys_of_two_owners_do_not_meet(front: Front) -> None:
    first, other = send(front, ADA, key="k"), send(front, BOB, key="k", labels="[0]")
    assert first != other and send(front, ADA, key="k") == first


def test_higher_priorities_go_first_and_the_highest_needs_a_key_for_it(front: Front) -> None:
    low = send(front, ADA, priority="low")
    normal = send(front, BOB)
    with acting(front, BOB):
        refused = front.post(priority="high")
        details = check_error(refused, 403, "missing_scope", "priority `high`.*'admin'")
        check_error(
            front.post(priority="urgent"), 422, "invalid_priority", "'low', 'normal' or 'high'"
        )
    assert details == {"scope": "admin"} and len(front.folders()) == 2
    high = send(front, ROOT, priority="high")
    shown = [front.request("GET", place).json() for place in (high, normal, low)]
    assert [(one["queue_position"], one["priority"], one["owner"]) for one in shown] == [
        (1, "high", "root"),
        (2, "normal", "bob"),
        (3, "low", "ada"),
    ]
    listed = front.request("GET", URL).json()["evaluations"]
    assert [one["queue_position"] for one in listed] == [1, 2, 3]
    claimed = [front.store.claim("w") for _ in range(3)]
    assert [job and f"{URL}/{job.id}" for job in claimed] == [high, normal, low]


def test_a_spent_budget_refuses_for_now_and_what_no_day_allows_for_good(front: Front) -> None:
    cost = front.post(pictures(1)).json()["cost"]["model_evaluations"]
    poor = Caller(name="poor", scopes=ADA.scopes, evaluations_budget=2 * cost)
    accepted = [send(front, poor) for _ in range(2)]
    for deleted in (False, True):
        with acting(front, poor):
            for _ in range(2 * deleted):
                front.request("DELETE", accepted[0])
            refused = front.post()
        assert check_error(refused, 429, "budget_spent", "24 hours") == {"limit": 2 * cost}
        assert 86_000 < int(refused.headers["retry-after"]) <= 86_400
    send(front, Caller(name="other", scopes=ADA.scopes, evaluations_budget=2 * cost))
    with acting(front, Caller(name="poorer", scopes=ADA.scopes, evaluations_budget=5)):
        details = check_error(front.post(), 422, "too_expensive", "this key's 5")
    assert details["limit"] == 5 and len(front.folders()) == 3


def test_a_full_queue_tells_when_a_place_may_be_free(
    tmp_path: Path, artifacts: dict[str, Artifact]
) -> None:
    front = Front(tmp_path, artifacts, queue_length=1)
    running = send(front, ADA).removeprefix(f"{URL}/")
    front.store.claim("w")
    front.store.progress(running, "w", done=1, total=2, stage="fgsm", eta=41.5)
    send(front, ADA)
    for caller, whose in ((ADA, "1 evaluations of 'ada' are"), (BOB, "1 evaluations are")):
        with acting(front, caller):
            refused = front.post()
        check_error(refused, 429, "queue_full", f"{whose} waiting")
        assert refused.headers["retry-after"] == "42"
    send(front, ROOT, priority="high")
    front.close()


def test_uploads_of_one_caller_are_checked_one_after_the_other(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slow uploads took all threads, and whoever came next waited, though they had left."""
    checking, go_on = threading.Event(), threading.Event()
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        """The first call waits."""
        if not checking.is_set():
            checking.set()
            assert go_on.wait(10)
        fsync(descriptor)

    async def conversation(client: httpx.AsyncClient) -> list[httpx.Response]:
        parts = [("spec", (None, json.dumps(FGSM))), ("images", ("a.png", PNG))]

        def post() -> asyncio.Task[httpx.Response]:
            return asyncio.create_task(client.post(URL, files=parts))

        with acting(front, ADA):
            waiting = [post() for _ in range(4)]
            while not checking.is_set():
                await asyncio.sleep(0.01)
            request = client.build_request("POST", URL, files=parts)
            assert await leave(front.as_caller, request, checking.is_set) == 499
        with acting(front, BOB):
            first = await asyncio.wait_for(post(), 10)
        assert not any(task.done() for task in waiting)
        go_on.set()
        return [first, *await asyncio.gather(*waiting)]

    monkeypatch.setattr("os.fsync", slow)
    assert [one.status_code for one in front.talk(conversation)] == [202] * 5
    assert len(front.folders()) == front.store.waiting() == 5


def cost_of(front: Front, body: object, kind: str = "application/json") -> httpx.Response:
    headers = {"content-type": kind}
    return front.request("POST", f"{URL}/cost", content=json.dumps(body), headers=headers)


def test_the_cost_is_known_before_anything_is_sent(front: Front) -> None:
    for spec in (FGSM, FGSM | {"compare_with": "fashion-dot"}):
        asked = cost_of(front, {"spec": spec, "samples": 3})
        sent = front.post(pictures(3), spec=json.dumps(spec))
        assert asked.json() == sent.json()["cost"]
    assert len(front.folders()) == 2


def test_a_cost_is_refused_as_the_evaluation_would_be(front: Front) -> None:
    for body, status, code, message in [
        ({"spec": FGSM}, 422, "invalid_body", "samples: Field required"),
        ({"spec": FGSM, "samples": 1, "x": 1}, 422, "invalid_body", "x: Extra"),
        ({"spec": FGSM, "samples": 0}, 422, "invalid_body", "greater than or equal to 1"),
        ({"spec": FGSM, "samples": True}, 422, "invalid_body", "valid integer"),
        ({"spec": FGSM, "samples": 2001}, 422, "too_many_images", "2000 allowed"),
        ({"spec": {"attacks": []}, "samples": 1}, 422, "invalid_spec", "attacks"),
        ({"spec": FGSM | {"model": "no"}, "samples": 1}, 404, "unknown_model", "'no'"),
    ]:
        check_error(cost_of(front, body), status, code, message)
    as_text = cost_of(front, {"spec": FGSM, "samples": 1}, kind="text/plain")
    check_error(as_text, 415, "wrong_content_type", "application/json")
    check_error(front.request("GET", f"{URL}/cost"), 404, "unknown_evaluation", "")

import multiprocessing
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from service.jobs.claims import MAX_ATTEMPTS, MAX_LOST
from service.jobs.queue import BudgetSpent, JobStore, KeyConflict, QueueFull, predict_seconds
from service.jobs.table import PRIORITIES, NewJob, new_job_id

MODELS = [{"name": "m", "version": "1", "digest": "d"}]
DAY_S = 86_400


@pytest.fixture
def store(database: str) -> Iterator[JobStore]:
    """A table in each kind of database."""
    store = JobStore(database)
    yield store
    store.close()


def new_job(**changes: object) -> NewJob:
    values: dict[str, object] = {
        "id": new_job_id(),
        "spec": {"seed": 1},
        "models": MODELS,
        "samples": 3,
        "cost": 60,
        "fingerprint": "f",
    }
    return NewJob(**(values | changes))  # type: ignore[arg-type]


def submit(store: JobStore, **changes: object) -> str:
    return store.submit(new_job(**changes), queue_length=100)[0].id


def status(store: JobStore, job_id: str) -> str:
    job = store.get(job_id)
    assert job is not None
    return job.status


def test_a_job_runs_from_queue_to_result(store: JobStore) -> None:
    job_id = submit(store)
    claimed = store.claim("w")
    assert claimed is not None and claimed.id == job_id and claimed.started is not None
    assert store.progress(job_id, "w", done=30, total=60, stage="pgd", eta=1.5)
    assert store.finish(job_id, "w", {"models": []})
    job = store.get(job_id)
    assert job is not None
    assert (job.status, job.result, job.done, job.eta) == ("succeeded", {"models": []}, 30, None)
    assert job.finished is not None and not job.active


def test_rows_survive_reopening(database: str) -> None:
    first = JobStore(database)
    job_id = submit(first)
    first.close()
    second = JobStore(database)
    assert status(second, job_id) == "queued"
    second.close()


def test_oldest_job_is_claimed_first_and_none_twice(store: JobStore) -> None:
    ids = [submit(store) for _ in range(3)]
    claimed = [store.claim("w") for _ in range(4)]
    assert [job.id if job else None for job in claimed] == [*ids, None]


def _claim_all(address: str, worker: str, start: Any, found: Any) -> None:
    store = JobStore(address)
    start.wait()
    while (job := store.claim(worker)) is not None:
        found.put(job.id)
    store.close()


def test_several_processes_never_claim_the_same_job(store: JobStore) -> None:
    ids = {submit(store) for _ in range(60)}
    context = multiprocessing.get_context("spawn")
    start, found = context.Event(), context.Queue()
    claimers = [
        context.Process(target=_claim_all, args=(store.address, f"w{i}", start, found))
        for i in range(3)
    ]
    for claimer in claimers:
        claimer.start()
    start.set()
    claimed = [found.get(timeout=60) for _ in ids]
    for claimer in claimers:
        claimer.join(timeout=60)
        claimer.close()
    assert set(claimed) == ids
    assert found.empty()


def test_threads_share_one_store(store: JobStore) -> None:
    threads = [threading.Thread(target=submit, args=(store,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.waiting() == 20


def test_a_job_that_was_lost_cannot_be_finished_by_its_former_owner(store: JobStore) -> None:
    job_id = submit(store)
    store.claim("slow")
    assert store.requeue_lost(silent_for=-1) == [job_id]
    assert status(store, job_id) == "queued"
    store.claim("new")
    assert not store.heartbeat(job_id, "slow")
    assert not store.progress(job_id, "slow", done=1, total=2, stage="", eta=None)
    assert store.should_stop(job_id, "slow")
    assert not store.finish(job_id, "slow", {"by": "slow"})
    assert not store.release(job_id, "slow", cause="x")
    assert store.finish(job_id, "new", {"by": "new"})
    assert not store.fail(job_id, "new", "code", "message")
    job = store.get(job_id)
    assert job is not None and job.result == {"by": "new"}


def test_a_beating_heart_is_left_alone(store: JobStore) -> None:
    job_id = submit(store)
    store.claim("w")
    assert store.heartbeat(job_id, "w")
    assert store.requeue_lost(silent_for=5) == []


def test_attempts_without_progress_end_in_a_clear_failure(store: JobStore) -> None:
    job_id = submit(store)
    for _ in range(MAX_ATTEMPTS):
        store.claim("w")
        assert store.release(job_id, "w", cause="killed by signal 9")
    job = store.get(job_id)
    assert job is not None and job.status == "failed" and job.finished is not None
    assert job.error is not None and job.error["code"] == "evaluator_died"
    assert "3 times without progress (killed by signal 9)" in job.error["message"]


def test_a_job_outlives_its_evaluators_many_times(store: JobStore) -> None:
    job_id = submit(store)
    for _ in range(MAX_LOST - 1):
        store.claim("w")
        assert store.requeue_lost(silent_for=-1) == [job_id]
    assert status(store, job_id) == "queued"
    job = store.claim("w")
    assert job is not None and job.attempts == 1
    store.progress(job_id, "w", done=500, total=1000, stage="", eta=None)
    for _ in range(MAX_LOST):
        assert status(store, job_id) == "running"
        assert store.requeue_lost(silent_for=-1) == [job_id]
        store.claim("w")
    job = store.get(job_id)
    assert job is not None and job.status == "failed" and job.error is not None
    assert f"{MAX_LOST} times without progress (the evaluator disappeared)" in job.error["message"]


def test_attempts_that_get_further_do_not_wear_a_job_out(store: JobStore) -> None:
    job_id = submit(store)
    for attempt in range(3 * MAX_ATTEMPTS):
        store.claim("w")
        store.progress(job_id, "w", done=10 * (attempt + 1), total=1000, stage="", eta=None)
        store.release(job_id, "w", cause="killed by signal 9")
    assert status(store, job_id) == "queued"


def test_a_shutdown_does_not_count_as_an_attempt(store: JobStore) -> None:
    job_id = submit(store)
    for _ in range(2 * MAX_ATTEMPTS):
        store.claim("w")
        store.release(job_id, "w", cause="shutdown", counted=False)
    assert status(store, job_id) == "queued"


def test_a_finished_job_cannot_be_released(store: JobStore) -> None:
    job_id = submit(store)
    store.claim("w")
    store.finish(job_id, "w", {})
    assert not store.release(job_id, "w", cause="shutdown", counted=False)
    job = store.get(job_id)
    assert job is not None and (job.status, job.attempts) == ("succeeded", 1)


def test_cancelling_a_queued_job_takes_effect_at_once(store: JobStore) -> None:
    job_id = submit(store)
    job = store.request_cancel(job_id)
    assert job is not None and job.status == "cancelled" and job.finished is not None
    assert store.claim("w") is None


def test_cancelling_a_running_job_asks_it_to_stop(store: JobStore) -> None:
    job_id = submit(store)
    store.claim("w")
    assert not store.should_stop(job_id, "w")
    job = store.request_cancel(job_id)
    assert job is not None and job.status == "running"
    assert store.should_stop(job_id, "w")
    assert store.cancelled(job_id, "w")
    assert status(store, job_id) == "cancelled"


def test_a_cancelled_job_whose_worker_died_is_not_queued_again(store: JobStore) -> None:
    job_id = submit(store)
    store.claim("w")
    store.request_cancel(job_id)
    store.requeue_lost(silent_for=-1)
    assert status(store, job_id) == "cancelled"


def test_the_same_key_and_request_give_the_same_job(store: JobStore) -> None:
    first, created = store.submit(new_job(idempotency_key="k"), queue_length=1)
    again, created_again = store.submit(new_job(idempotency_key="k"), queue_length=1)
    assert (created, created_again, again.id) == (True, False, first.id)
    with pytest.raises(KeyConflict):
        store.submit(new_job(idempotency_key="k", fingerprint="other"), queue_length=1)


def test_a_full_queue_refuses(store: JobStore) -> None:
    submit(store)
    with pytest.raises(QueueFull):
        store.submit(new_job(), queue_length=1)


def test_only_a_finished_job_is_deleted_and_leaves_a_tombstone(store: JobStore) -> None:
    job_id = submit(store, idempotency_key="k")
    assert not store.delete(job_id)
    store.request_cancel(job_id)
    assert store.keeps_files(job_id)
    assert store.delete(job_id)
    assert not store.delete(job_id)
    job = store.get(job_id)
    assert job is not None and job.deleted is not None and job.spec == {}
    assert not store.keeps_files(job_id)
    assert store.page() == ([], None)
    assert store.find_key("", "k", "f") is None


def test_pages_follow_the_cursor_and_the_status(store: JobStore) -> None:
    ids = [submit(store) for _ in range(5)]
    store.request_cancel(ids[0])
    jobs, cursor = store.page(limit=3)
    assert [job.id for job in jobs] == ids[:1:-1]
    rest, end = store.page(limit=3, cursor=cursor)
    assert [job.id for job in rest] == [ids[1], ids[0]] and end is None
    assert [job.id for job in store.page(status="cancelled")[0]] == [ids[0]]


def test_speed_comes_from_undisturbed_jobs_of_the_same_models_only(store: JobStore) -> None:
    assert store.seconds_of(MODELS, 10) is None
    for disturbed in (False, True):
        job_id = submit(store)
        store.claim("w")
        if disturbed:
            store.release(job_id, "w", cause="x")
            store.claim("w")
        store.finish(job_id, "w", {})
        measured = store.seconds_of(MODELS, 10)
        assert measured is not None and 0 <= measured < 1
    assert store.seconds_of([{"name": "other"}], 10) is None


@pytest.mark.parametrize(
    ("known", "cost", "expected"),
    [
        ([], 5, None),
        ([(100, 3.0)], 50, 3.0),  # the start may be all of it
        ([(100, 3.0)], 1000, 30.0),
        ([(100, 3.0)], 1001, None),
        ([(100, 3.0), (1100, 4.0)], 5100, 8.0),  # 2.9 s to start, 1 ms each
        ([(100, 3.0), (1000, 2.0)], 500, 2.5),  # noise: no part is negative
        ([(1, 1.0), (2, 3.0)], 4, 4 * 2.0 / 1.5),
    ],
)
def test_the_start_of_an_evaluation_is_no_part_of_its_speed(
    known: list[tuple[int, float]], cost: int, expected: float | None
) -> None:
    assert predict_seconds(known, cost) == (None if expected is None else pytest.approx(expected))


def test_finished_jobs_expire(store: JobStore) -> None:
    submit(store)
    done = submit(store)
    store.request_cancel(done)
    assert store.expired(older_than=3600) == []
    assert store.expired(older_than=-1) == [done]


def test_a_higher_priority_is_claimed_first_and_places_tell_so(store: JobStore) -> None:
    low, normal, high, later = (
        submit(store, priority=PRIORITIES[name]) for name in ("low", "normal", "high", "high")
    )
    jobs = store.get_all([low, normal, high, later])
    places = {job_id: jobs[job_id].position for job_id in (high, later, normal, low)}
    assert places == {high: 1, later: 2, normal: 3, low: 4}
    assert [jobs[job_id].priority_name for job_id in (low, high)] == ["low", "high"]
    first = store.claim("w")
    assert first is not None and first.id == high
    running = store.get(high)
    assert running is not None and running.position is None
    waiting = store.get(low)
    assert waiting is not None and waiting.position == 3


def test_idempotency_keys_are_those_of_their_owner(store: JobStore) -> None:
    ids = {submit(store, owner=owner, idempotency_key="k") for owner in ("a", "b", "")}
    assert len(ids) == 3
    found = store.find_key("b", "k", "f")
    assert found is not None and found.owner == "b"
    assert store.find_key("c", "k", "f") is None


def test_a_page_shows_one_owner_or_all_and_one_model(store: JobStore) -> None:
    mine, other = submit(store, owner="a"), submit(store, owner="b")
    third = submit(store, owner="a", models=[MODELS[0] | {"name": "n"}])
    assert {job.id for job in store.page(owner="a")[0]} == {mine, third}
    assert {job.id for job in store.page()[0]} == {mine, other, third}
    assert [job.id for job in store.page(owner="a", model="n")[0]] == [third]


def test_a_budget_counts_what_was_accepted_in_a_day(store: JobStore) -> None:
    first = submit(store, owner="a", cost=60)
    since = time.time() - DAY_S
    assert (store.spent("a", since), store.spent("b", since)) == (60, 0)
    assert store.spent("a", time.time() + 60) == 0
    with pytest.raises(BudgetSpent):
        store.submit(new_job(owner="a", cost=41), queue_length=9, budget=100)
    store.submit(new_job(owner="a", cost=40), queue_length=9, budget=100)
    store.submit(new_job(owner="b", cost=100), queue_length=9, budget=100)
    store.request_cancel(first)
    store.delete(first)
    assert store.spent("a", since) == 100
    assert DAY_S - 60 < store.affordable_in("a", 1, 100) <= DAY_S
    assert store.affordable_in("b", 1, 200) == 0


def test_figures_count_states_and_work_done(store: JobStore) -> None:
    done, gone = submit(store), submit(store)
    submit(store)
    store.claim("w")
    store.progress(done, "w", done=60, total=60, stage="", eta=2.5)
    assert store.next_place_in() == 2.5
    store.finish(done, "w", {})
    store.request_cancel(gone)
    expected = {"queued": 1, "running": 0, "succeeded": 1, "failed": 0, "cancelled": 1}
    assert store.counts() == expected
    store.delete(gone)
    store.delete(done)
    assert store.counts() == expected | {"succeeded": 0, "cancelled": 0}
    assert (store.totals(), store.next_place_in()) == (60, None)


def test_the_time_of_all_attempts_adds_up(store: JobStore) -> None:
    job_id = submit(store)
    for _ in range(2):
        store.claim("w")
        time.sleep(0.05)
        store.heartbeat(job_id, "w")
        store.release(job_id, "w", cause="x")
    job = store.get(job_id)
    assert job is not None and 0.1 <= job.ran < 10


@pytest.mark.parametrize("odd", ["", "\0", "x" * 32, "\udcff", "A" * 32])
def test_what_is_no_identifier_is_not_looked_for(store: JobStore, odd: str) -> None:
    assert store.get(odd) is None and not store.keeps_files(odd)


def test_an_odd_stage_or_owner_is_stored_as_it_is(store: JobStore) -> None:
    job_id = submit(store, owner="Ümläut '; --", spec={"x": "\0\ud800"})
    job = store.get(job_id)
    assert job is not None
    assert (job.owner, job.spec) == ("Ümläut '; --", {"x": "\0\ud800"})


def test_full_queue_and_budget_hold_for_threads_at_once(store: JobStore) -> None:
    refused: list[type[Exception]] = []

    def send() -> None:
        try:
            store.submit(new_job(owner="a", cost=10), queue_length=100, budget=50)
        except BudgetSpent as error:
            refused.append(type(error))

    threads = [threading.Thread(target=send) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (store.waiting(), len(refused)) == (5, 7)

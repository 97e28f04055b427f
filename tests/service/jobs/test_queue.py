import multiprocessing
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.jobs.claims import MAX_ATTEMPTS, MAX_LOST
from service.jobs.queue import BudgetSpent, JobStore, KeyConflict, QueueFull, predict_seconds
from service.jobs.table import PRIORITIES, Job, NewJob, new_job_id
from tests.service.jobs.postgres import emptied, truncated

MODELS = [{"name": "m", "version": "1", "digest": "d"}]
DAY_S = 86_400


def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobStore]:
    """A table in each kind of database."""
    address = f"sqlite:///{tmp_path / 'assay.sqlite3'}"
    if request.param == "postgresql":
        address = truncated(request.getfixturevalue("postgresql_server"))
    store = JobStore(address)
    yield store
    store.close()


# What is the same statement on both is tried on PostgreSQL among the slow tests.
store = pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])(
    opened
)
each = pytest.fixture(params=["sqlite", "postgresql"])(opened)


def got(store: JobStore, job_id: str) -> Job:
    job = store.get(job_id)
    assert job is not None
    return job


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
    return got(store, job_id).status


def test_a_job_runs_from_queue_to_result(each: JobStore) -> None:
    job_id = submit(each)
    claimed = each.claim("w")
    assert claimed is not None and claimed.id == job_id and claimed.started is not None
    assert each.progress(job_id, "w", done=30, total=60, stage="pgd", eta=1.5)
    assert each.finish(job_id, "w", {"models": []})
    job = got(each, job_id)
    assert (job.status, job.result, job.done, job.eta) == ("succeeded", {"models": []}, 30, None)
    assert job.finished is not None and not job.active


def test_rows_survive_reopening(tmp_path: Path) -> None:
    first = JobStore(f"sqlite:///{tmp_path / 'assay.sqlite3'}")
    job_id = submit(first)
    first.close()
    second = JobStore(first.address)
    assert status(second, job_id) == "queued"
    second.close()


def _submit_and_claim(address: str, worker: str, start: Any, found: Any) -> None:
    start.wait()
    store = JobStore(address)
    ids = {submit(store) for _ in range(20)}
    claimed = []
    while (job := store.claim(worker)) is not None:
        claimed.append(job.id)
    store.close()
    found.put((ids, claimed))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_processes_make_the_table_once_and_never_claim_the_same_job(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    address = f"sqlite:///{tmp_path / 'assay.sqlite3'}"
    if kind == "postgresql":
        address = emptied(request.getfixturevalue("postgresql_server"))
    context = multiprocessing.get_context("spawn")
    start, found = context.Event(), context.Queue()
    processes = [
        context.Process(target=_submit_and_claim, args=(address, f"w{i}", start, found))
        for i in range(2)
    ]
    for process in processes:
        process.start()
    start.set()
    outcomes = [found.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=60)
        process.close()
    claimed = [job_id for _, ids in outcomes for job_id in ids]
    assert len(claimed) == 40
    assert set(claimed) == set.union(*(ids for ids, _ in outcomes))


def test_a_job_that_was_lost_cannot_be_finished_by_its_former_owner(each: JobStore) -> None:
    job_id = submit(each)
    each.claim("slow")
    assert each.requeue_lost(silent_for=-1) == [job_id]
    assert status(each, job_id) == "queued"
    each.claim("new")
    assert not each.heartbeat(job_id, "slow")
    assert not each.progress(job_id, "slow", done=1, total=2, stage="", eta=None)
    assert each.should_stop(job_id, "slow")
    assert not each.finish(job_id, "slow", {"by": "slow"})
    assert not each.release(job_id, "slow", cause="x")
    assert each.finish(job_id, "new", {"by": "new"})
    assert not each.fail(job_id, "new", "code", "message")
    job = got(each, job_id)
    assert job.result == {"by": "new"}


def test_attempts_without_progress_end_in_a_clear_failure(store: JobStore) -> None:
    job_id = submit(store)
    for _ in range(MAX_ATTEMPTS):
        store.claim("w")
        assert store.release(job_id, "w", cause="killed by signal 9")
    job = got(store, job_id)
    assert job.status == "failed" and job.finished is not None
    assert job.error is not None and job.error["code"] == "evaluator_died"
    assert "3 times without progress (killed by signal 9)" in job.error["message"]


def test_a_job_outlives_its_evaluators_many_times(each: JobStore) -> None:
    job_id = submit(each)
    for _ in range(MAX_LOST - 1):
        each.claim("w")
        assert each.requeue_lost(silent_for=-1) == [job_id]
    assert status(each, job_id) == "queued"
    job = each.claim("w")
    assert job is not None and job.attempts == 1
    each.progress(job_id, "w", done=500, total=1000, stage="", eta=None)
    for _ in range(MAX_LOST):
        assert status(each, job_id) == "running"
        assert each.requeue_lost(silent_for=-1) == [job_id]
        each.claim("w")
    job = got(each, job_id)
    assert job.status == "failed" and job.error is not None
    assert f"{MAX_LOST} times without progress (the evaluator disappeared)" in job.error["message"]


def test_attempts_that_get_further_do_not_wear_a_job_out(store: JobStore) -> None:
    job_id = submit(store)
    for attempt in range(3 * MAX_ATTEMPTS):
        store.claim("w")
        store.progress(job_id, "w", done=10 * (attempt + 1), total=1000, stage="", eta=None)
        store.release(job_id, "w", cause="killed by signal 9")
    assert status(store, job_id) == "queued"


def test_cancelling_a_queued_job_takes_effect_at_once(store: JobStore) -> None:
    job_id = submit(store)
    job = store.request_cancel(job_id)
    assert job is not None and job.status == "cancelled" and job.finished is not None
    assert store.claim("w") is None


def test_cancelling_a_running_job_asks_it_to_stop(each: JobStore) -> None:
    job_id = submit(each)
    each.claim("w")
    assert not each.should_stop(job_id, "w")
    job = each.request_cancel(job_id)
    assert job is not None and job.status == "running"
    assert each.should_stop(job_id, "w")
    assert each.cancelled(job_id, "w")
    assert status(each, job_id) == "cancelled"


def test_only_a_finished_job_is_deleted_and_leaves_a_tombstone(store: JobStore) -> None:
    job_id = submit(store, idempotency_key="k")
    assert not store.delete(job_id)
    store.request_cancel(job_id)
    assert store.keeps_files(job_id)
    assert store.delete(job_id)
    assert not store.delete(job_id)
    job = got(store, job_id)
    assert job.deleted is not None and job.spec == {}
    assert not store.keeps_files(job_id)
    assert store.page() == ([], None)
    assert store.find_key("", "k", "f") is None


def test_pages_follow_the_cursor_and_the_status(each: JobStore) -> None:
    ids = [submit(each) for _ in range(5)]
    each.request_cancel(ids[0])
    jobs, cursor = each.page(limit=3)
    assert [job.id for job in jobs] == ids[:1:-1]
    rest, end = each.page(limit=3, cursor=cursor)
    assert [job.id for job in rest] == [ids[1], ids[0]] and end is None
    assert [job.id for job in each.page(status="cancelled")[0]] == [ids[0]]


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


def test_a_higher_priority_is_claimed_first_and_places_tell_so(each: JobStore) -> None:
    low, normal, high, later = (
        submit(each, priority=PRIORITIES[name]) for name in ("low", "normal", "high", "high")
    )
    jobs = each.get_all([low, normal, high, later])
    places = {job_id: jobs[job_id].position for job_id in (high, later, normal, low)}
    assert places == {high: 1, later: 2, normal: 3, low: 4}
    assert [jobs[job_id].priority_name for job_id in (low, high)] == ["low", "high"]
    first = each.claim("w")
    assert first is not None and first.id == high
    assert (got(each, high).position, got(each, low).position) == (None, 3)


def test_a_page_shows_one_owner_or_all_and_one_model(store: JobStore) -> None:
    mine, other = submit(store, owner="a"), submit(store, owner="b")
    third = submit(store, owner="a", models=[MODELS[0] | {"name": "n"}])
    assert {job.id for job in store.page(owner="a")[0]} == {mine, third}
    assert {job.id for job in store.page()[0]} == {mine, other, third}
    assert [job.id for job in store.page(owner="a", model="n")[0]] == [third]


def test_a_budget_counts_what_was_accepted_in_a_day(each: JobStore) -> None:
    first = submit(each, owner="a", cost=60)
    since = time.time() - DAY_S
    assert (each.spent("a", since), each.spent("b", since)) == (60, 0)
    assert each.spent("a", time.time() + 60) == 0
    with pytest.raises(BudgetSpent):
        each.submit(new_job(owner="a", cost=41), queue_length=9, budget=100)
    each.submit(new_job(owner="a", cost=40), queue_length=9, budget=100)
    each.submit(new_job(owner="b", cost=100), queue_length=9, budget=100)
    each.request_cancel(first)
    each.delete(first)
    assert each.spent("a", since) == 100
    assert DAY_S - 60 < each.affordable_in("a", 1, 100) <= DAY_S
    assert each.affordable_in("b", 1, 200) == 0


def test_figures_count_states_and_work_done(each: JobStore) -> None:
    done, gone = submit(each), submit(each)
    submit(each)
    each.claim("w")
    each.progress(done, "w", done=60, total=60, stage="", eta=2.5)
    assert each.next_place_in() == 2.5
    each.finish(done, "w", {})
    each.request_cancel(gone)
    expected = {"queued": 1, "running": 0, "succeeded": 1, "failed": 0, "cancelled": 1}
    assert each.counts() == expected
    each.delete(gone)
    each.delete(done)
    assert each.counts() == expected | {"succeeded": 0, "cancelled": 0}
    assert (each.totals(), each.next_place_in()) == (60, None)


def test_the_time_of_all_attempts_adds_up(store: JobStore) -> None:
    job_id = submit(store)
    for _ in range(2):
        store.claim("w")
        time.sleep(0.05)
        store.heartbeat(job_id, "w")
        store.release(job_id, "w", cause="x")
    job = got(store, job_id)
    assert 0.1 <= job.ran < 10


def test_full_queue_and_budget_hold_for_threads_at_once(each: JobStore) -> None:
    refused: list[type[Exception]] = []

    def send() -> None:
        try:
            each.submit(new_job(owner="a", cost=10), queue_length=100, budget=50)
        except BudgetSpent as error:
            refused.append(type(error))

    threads = [threading.Thread(target=send) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (each.waiting(), len(refused)) == (5, 7)


def test_what_ends_through_no_fault_of_the_job_does_not_count(store: JobStore) -> None:
    job_id = submit(store)
    for _ in range(2 * MAX_ATTEMPTS):
        store.claim("w")
        assert store.heartbeat(job_id, "w")
        assert store.requeue_lost(silent_for=5) == []  # its heart beats
        store.release(job_id, "w", cause="shutdown", counted=False)
    assert status(store, job_id) == "queued"
    store.claim("w")
    store.finish(job_id, "w", {})
    assert not store.release(job_id, "w", cause="shutdown", counted=False)
    assert (got(store, job_id).status, got(store, job_id).attempts) == ("succeeded", 1)
    cancelled = submit(store)
    store.claim("w")
    store.request_cancel(cancelled)
    store.requeue_lost(silent_for=-1)
    assert status(store, cancelled) == "cancelled"


def test_a_key_stands_for_one_request_of_its_owner(store: JobStore) -> None:
    def send(**changes: object) -> tuple[Job, bool]:
        return store.submit(new_job(idempotency_key="k", **changes), queue_length=2)

    (first, created), (again, created_again) = send(), send()
    assert (created, created_again, again.id) == (True, False, first.id)
    with pytest.raises(KeyConflict):
        send(fingerprint="other")
    other, created = send(owner="b")
    assert created and other.id != first.id
    found = store.find_key("b", "k", "f")
    assert found is not None and found.owner == "b"
    assert store.find_key("c", "k", "f") is None
    with pytest.raises(QueueFull):
        send(owner="c")


def test_odd_values_are_stored_as_they_are_and_odd_names_are_unknown(store: JobStore) -> None:
    job = got(store, submit(store, owner="Ümläut '; --", spec={"x": "\0\ud800"}))
    assert (job.owner, job.spec) == ("Ümläut '; --", {"x": "\0\ud800"})
    for odd in ("", "\0", "x" * 32, "\udcff", "A" * 32):
        assert store.get(odd) is None and not store.keeps_files(odd)

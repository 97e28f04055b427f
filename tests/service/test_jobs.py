import multiprocessing
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.job import NewJob, new_job_id
from service.jobs import MAX_ATTEMPTS, JobStore, KeyConflict, QueueFull
from service.jobs_schema import StateError

MODELS = [{"name": "m", "version": "1", "digest": "d"}]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    store = JobStore(tmp_path / "assay.sqlite3")
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


def test_rows_survive_reopening(tmp_path: Path) -> None:
    first = JobStore(tmp_path / "state" / "assay.sqlite3")
    job_id = submit(first)
    first.close()
    second = JobStore(tmp_path / "state" / "assay.sqlite3")
    assert status(second, job_id) == "queued"
    second.close()


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "assay.sqlite3")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StateError, match="schema version 99"):
        JobStore(tmp_path / "assay.sqlite3")


def test_oldest_job_is_claimed_first_and_none_twice(store: JobStore) -> None:
    ids = [submit(store) for _ in range(3)]
    claimed = [store.claim("w") for _ in range(4)]
    assert [job.id if job else None for job in claimed] == [*ids, None]


def _claim_all(path: Path, worker: str, start: object, found: object) -> None:
    store = JobStore(path)
    start.wait()  # type: ignore[attr-defined]
    while (job := store.claim(worker)) is not None:
        found.put(job.id)  # type: ignore[attr-defined]
    store.close()


def test_two_processes_never_claim_the_same_job(store: JobStore) -> None:
    ids = {submit(store) for _ in range(60)}
    context = multiprocessing.get_context("spawn")
    start, found = context.Event(), context.Queue()
    claimers = [
        context.Process(target=_claim_all, args=(store.path, f"w{i}", start, found))
        for i in range(2)
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
    assert store.find_key("k", "f") is None


def test_pages_follow_the_cursor_and_the_status(store: JobStore) -> None:
    ids = [submit(store) for _ in range(5)]
    store.request_cancel(ids[0])
    jobs, cursor = store.page(limit=3)
    assert [job.id for job in jobs] == ids[:1:-1]
    rest, end = store.page(limit=3, cursor=cursor)
    assert [job.id for job in rest] == [ids[1], ids[0]] and end is None
    assert [job.id for job in store.page(status="cancelled")[0]] == [ids[0]]


def test_speed_comes_from_undisturbed_jobs_of_the_same_models_only(store: JobStore) -> None:
    assert store.seconds_per_evaluation(MODELS) is None
    for disturbed in (False, True):
        job_id = submit(store)
        store.claim("w")
        if disturbed:
            store.release(job_id, "w", cause="x")
            store.claim("w")
        store.finish(job_id, "w", {})
        measured = store.seconds_per_evaluation(MODELS)
        assert measured is not None and 0 <= measured < 1
    assert store.seconds_per_evaluation([{"name": "other"}]) is None


def test_finished_jobs_expire(store: JobStore) -> None:
    submit(store)
    done = submit(store)
    store.request_cancel(done)
    assert store.expired(older_than=3600) == []
    assert store.expired(older_than=-1) == [done]

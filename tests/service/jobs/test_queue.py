import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from service.http.refusal import ApiError
from service.jobs.claims import MAX_ATTEMPTS, MAX_LOST
from service.jobs.database import read_url
from service.jobs.queue import JobStore, predict_seconds
from service.jobs.room import Limits, Need
from service.jobs.table import PRIORITIES, Job, NewJob, new_job_id
from service.settings import Settings

MODELS = [{"name": "m", "version": "1", "digest": "d"}]
MANY = Limits(queue_length=1000, stored=10**9)


@pytest.fixture
def store(database: str) -> Iterator[JobStore]:
    """A table in each kind of database."""
    store = JobStore(database)
    yield store
    store.close()


def got(store: JobStore, job_id: str) -> Job:
    job = store.get(job_id)
    assert job is not None
    return job


def new_job(**changes: Any) -> NewJob:
    values: dict[str, Any] = {"spec": {"seed": 1}, "models": MODELS, "samples": 3, "cost": 60}
    values |= {"id": new_job_id(), "fingerprint": "f", **changes}
    return NewJob(**values)


def submit(store: JobStore, **changes: Any) -> str:
    return store.submit(new_job(**changes), MANY)[0].id


def _submit_and_claim(address: str, worker: str) -> tuple[set[str], list[str]]:
    store = JobStore(address)
    ids = {submit(store) for _ in range(20)}
    claimed = []
    while (job := store.claim(worker)) is not None:
        claimed.append(job.id)
    store.close()
    return ids, claimed


def test_processes_make_the_table_once_and_never_claim_the_same_job(database: str) -> None:
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(2).wait
    with ProcessPoolExecutor(2, context, initializer=together) as processes:
        outcomes = [*processes.map(_submit_and_claim, [database] * 2, "ab")]
    claimed = [job_id for _, ids in outcomes for job_id in ids]
    assert len(claimed) == 40
    assert set(claimed) == set.union(*(ids for ids, _ in outcomes))


def test_a_job_that_was_lost_cannot_be_finished_by_its_former_owner(store: JobStore) -> None:
    job_id = submit(store)
    store.claim("slow")
    assert store.requeue_lost(silent_for=-1) == [job_id]
    assert got(store, job_id).status == "queued"
    store.claim("new")
    assert not store.heartbeat(job_id, "slow")
    assert not store.progress(job_id, "slow", done=1, total=2, stage="", eta=None)
    assert store.should_stop(job_id, "slow")
    assert not store.finish(job_id, "slow", {"by": "slow"})
    assert not store.release(job_id, "slow", cause="x")
    assert store.finish(job_id, "new", {"by": "new"})
    assert not store.fail(job_id, "new", "code", "message")
    assert got(store, job_id).result == {"by": "new"}


def test_a_job_outlives_its_evaluators_many_times(store: JobStore) -> None:
    job_id = submit(store)
    for _ in range(MAX_LOST - 1):
        store.claim("w")
        assert store.requeue_lost(silent_for=-1) == [job_id]
    assert got(store, job_id).status == "queued"
    job = store.claim("w")
    assert job is not None and job.attempts == 1
    store.progress(job_id, "w", done=500, total=1000, stage="", eta=None)
    for _ in range(MAX_LOST):
        assert got(store, job_id).status == "running"
        assert store.requeue_lost(silent_for=-1) == [job_id]
        store.claim("w")
    assert (job := got(store, job_id)).status == "failed" and job.error is not None
    assert f"{MAX_LOST} times without progress (the evaluator disappeared)" in job.error["message"]


def test_attempts_that_get_further_do_not_wear_a_job_out(store: JobStore) -> None:
    job_id = submit(store)
    for attempt in range(3 * MAX_ATTEMPTS):
        store.claim("w")
        store.progress(job_id, "w", done=10 * (attempt + 1), total=1000, stage="", eta=None)
        store.release(job_id, "w", cause="killed by signal 9")
    assert got(store, job_id).status == "queued"


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


def wait_of_a_full_queue(store: JobStore) -> str:
    need = Need(owner="", sharer="", priority=0, cost=1, stored=0)
    with pytest.raises(ApiError) as refused:
        store.check_room(need, Limits(queue_length=1, stored=1))
    return refused.value.headers["Retry-After"]


def test_figures_count_states_and_work_done(store: JobStore) -> None:
    done, gone = submit(store), submit(store)
    submit(store)
    store.claim("w")
    store.progress(done, "w", done=60, total=60, stage="", eta=2.5)
    assert wait_of_a_full_queue(store) == "3"
    store.finish(done, "w", {})
    store.request_cancel(gone)
    expected = {"queued": 1, "running": 0, "succeeded": 1, "failed": 0, "cancelled": 1}
    assert store.counts() == expected
    store.delete(gone)
    store.delete(done)
    assert store.counts() == expected | {"succeeded": 0, "cancelled": 0}
    assert store.totals() == 60 and wait_of_a_full_queue(store) == "10"


def test_the_time_of_all_attempts_adds_up(store: JobStore) -> None:
    job_id = submit(store)
    for _ in range(2):
        store.claim("w")
        time.sleep(0.05)
        store.heartbeat(job_id, "w")
        store.release(job_id, "w", cause="x")
    assert 0.1 <= got(store, job_id).ran < 10


def test_full_queue_and_budget_hold_for_threads_at_once(store: JobStore) -> None:
    def send(_: int) -> bool:
        try:
            store.submit(new_job(owner="a", cost=10), replace(MANY, budget=50))
        except ApiError:
            return False
        return True

    with ThreadPoolExecutor(12) as threads:
        accepted = sum(threads.map(send, range(12)))
    assert accepted == store.waiting() == 5


def fill(store: JobStore, limits: Limits, **changes: Any) -> tuple[int, ApiError]:
    """How many evaluations are accepted, and why the next one is not."""
    count = 0
    while True:
        try:
            store.submit(new_job(**changes), limits)
        except ApiError as refused:
            assert refused.status == 429 and int(refused.headers["Retry-After"]) > 0
            return count, refused
        count += 1


def test_one_sharer_cannot_fill_the_queue_and_high_priority_has_places_of_its_own(
    store: JobStore,
) -> None:
    """17 evaluations of one key kept everybody out, administrators with high priority too."""
    limits = replace(MANY, queue_length=16)
    count, refused = fill(store, limits, sharer="alice")
    assert (count, refused.code) == (8, "queue_full")
    assert refused.details == {"caller": "alice", "waiting": 8}
    assert "8 evaluations of 'alice' are waiting, its share of 16 places" in refused.message
    counts = [fill(store, limits, sharer=name)[0] for name in ("bob", "eve", "ada", "dan")]
    assert counts == [4, 2, 1, 1]
    none_left = fill(store, limits, sharer="ron")
    assert none_left[0] == 0 and none_left[1].details == {"caller": None, "waiting": 16}
    high = {"priority": PRIORITIES["high"]}
    assert [fill(store, limits, sharer=name, **high)[0] for name in ("root", "bob")] == [8, 4]
    assert store.waiting() == 16 + 12


def test_sharers_take_turns_and_positions_tell_in_which_order(store: JobStore) -> None:
    """Whoever sends a thousand evaluations delays the first one of another by one at most."""
    sharers: dict[str, str] = {}

    def send(names: str, **changes: Any) -> None:
        sharers.update({submit(store, sharer=name, **changes): name for name in names})

    def claim() -> str:
        job = store.claim("w")
        assert job is not None
        return job.id

    send("a" * 9)
    assert [sharers[claim()] for _ in range(3)] == ["a"] * 3
    send("bbcb")
    send("c", priority=PRIORITIES["low"])
    send("a", priority=PRIORITIES["high"])
    positions = {one: got(store, one).position for one in sharers}
    waiting = sorted((place, one) for one, place in positions.items() if place)
    assert [place for place, _ in waiting] == [*range(1, 13)]
    assert "".join(sharers[one] for _, one in waiting) == "abcababaaaac"
    assert [one for _, one in waiting] == [claim() for _ in waiting]
    send("ab")
    claim()
    store.requeue_lost(silent_for=-1)
    assert store.waiting() == 17 and [sharers[claim()] for _ in range(3)] == ["a", "c", "a"]


def test_what_a_sharer_keeps_is_bounded_and_deleting_makes_room(store: JobStore) -> None:
    limits = replace(MANY, stored=10_000)
    count, refused = fill(store, limits, sharer="alice", stored=4000)
    assert (count, refused.code) == (2, "storage_spent")
    assert refused.details == {"stored": 8000, "limit": 10_000}
    assert fill(store, limits, sharer="bob", stored=10_000)[0] == 1
    job = store.claim("w")
    assert job is not None and store.finish(job.id, "w", {})
    assert store.keep(job.id, 1500) == 5500
    assert fill(store, limits, sharer="alice", stored=4000)[0] == 1
    assert store.delete(job.id) and store.keep(job.id, 1500) == 0
    assert fill(store, limits, sharer="alice", stored=1000)[0] == 2


def test_addresses_are_forgotten_some_time_after_their_evaluations(store: JobStore) -> None:
    keyed, other = submit(store, owner="pat", sharer="pat"), submit(store, sharer="10.0.0.1")
    for job_id in (keyed, other):
        store.request_cancel(job_id)
    store.forget_sharers(older_than=-1)
    assert got(store, other).sharer == "10.0.0.1"
    for job_id in (keyed, other):
        store.delete(job_id)
    store.forget_sharers(older_than=60)
    assert got(store, other).sharer == "10.0.0.1"
    store.forget_sharers(older_than=-1)
    assert (got(store, other).sharer, got(store, keyed).sharer) == ("", "pat")


def test_a_table_of_the_version_before_is_brought_up_to_date(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("service.jobs.database.HEAD", "0001")
        JobStore(database).close()
    values = {"id": "a" * 32, "owner": "pat", "status": "queued", "spec": "{}", "models": "[]"}
    columns = f"{', '.join(values)}, model, fingerprint, priority, samples, cost, created"
    marks = ", ".join(f":{name}" for name in values)
    engine = create_engine(read_url(database))
    with engine.begin() as connection:
        old = text(f"INSERT INTO evaluations ({columns}) VALUES ({marks}, 'm', 'f', 0, 3, 60, 1)")
        connection.execute(old, values)
    engine.dispose()
    store = JobStore(database)
    job = store.claim("w")
    assert job is not None and (job.owner, job.sharer, job.stored) == ("pat", "pat", 0)
    store.close()


def test_what_ends_through_no_fault_of_the_job_does_not_count(store: JobStore) -> None:
    job_id = submit(store)
    for _ in range(2 * MAX_ATTEMPTS):
        store.claim("w")
        assert store.heartbeat(job_id, "w")
        assert store.requeue_lost(silent_for=5) == []  # its heart beats
        store.release(job_id, "w", cause="shutdown", counted=False)
    store.claim("w")
    store.finish(job_id, "w", {})
    assert not store.release(job_id, "w", cause="shutdown", counted=False)
    assert (got(store, job_id).status, got(store, job_id).attempts) == ("succeeded", 1)
    cancelled = submit(store)
    store.claim("w")
    store.request_cancel(cancelled)
    store.requeue_lost(silent_for=-1)
    assert got(store, cancelled).status == "cancelled"


def test_odd_values_are_stored_as_they_are_and_odd_names_are_unknown(store: JobStore) -> None:
    job = got(store, submit(store, owner="Ümläut '; --", spec={"x": "\0\ud800"}))
    assert (job.owner, job.spec) == ("Ümläut '; --", {"x": "\0\ud800"})
    for odd in ("", "\0", "x" * 32, "\udcff", "A" * 32):
        assert store.get(odd) is None


def test_a_newer_schema_is_refused_and_left_alone(database: str) -> None:
    JobStore(database).close()
    engine = create_engine(read_url(database))
    try:
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '0099'"))
        with pytest.raises(ValueError, match="schema version 0099.*up to version 0002"):
            JobStore(database)
    finally:
        engine.dispose()


def test_a_state_may_lie_at_an_odd_path(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20c#é?x=1"
    JobStore(Settings(state=folder).database_url).close()
    assert (folder / "assay.sqlite3").is_file()
